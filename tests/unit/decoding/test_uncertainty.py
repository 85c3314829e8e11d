"""Scores and the interval feature."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw
from fleet.decoding.uncertainty import (
    disparity,
    entropy,
    feature_scalars,
    one_minus_max,
    perturbation,
    quantise_features,
    rejection_bound,
    restore_features,
    scores,
    spread,
    spread_bound,
    uncertainty,
    unit_codebook,
    volume,
)
from fleet.interval import Interval, interval_softmax
from fleet.prediction import FEATURE_SCALARS, FEATURE_SIZE, SCORE_NAMES
from tests.unit.decoding.laws import Floats, exact_odds, heads, intervals, logistic

RNG = np.random.default_rng(0)


def codebook(size: int) -> Floats:
    return unit_codebook(np.random.default_rng(size).normal(size=(size, 8)))


def spread_by_pairs(law: Floats, codes: Floats) -> float:
    """E |e_x - e_x'|² as the sum over all pairs."""
    distance = ((codes[:, None] - codes[None, :]) ** 2).sum(axis=-1)
    return float(law @ distance @ law)


@given(heads())
def test_scores_agree_with_their_definitions_in_higher_precision(
    head: tuple[Floats, Floats],
) -> None:
    logits, radius = head
    codes = codebook(logits.shape[-1])

    result = scores(interval_softmax(logits, radius), codes.astype(logits.dtype))

    odds, wide = exact_odds(logits), radius.astype(np.longdouble)
    lower, center, upper = logistic(odds - wide), logistic(odds), logistic(odds + wide)
    width = upper - lower
    mean = center.astype(float) @ codes
    square = (mean**2).sum(axis=-1)
    lead = mean @ codes.T - square[:, None]
    lost = np.where(lead > 0, center - lower, upper - center).astype(float) * np.abs(lead)
    kept = np.maximum(square - lost.sum(axis=-1), 0)
    wanted = {
        "uncertainty": width.sum(axis=-1) * width.std(axis=-1),
        "rejection_bound": np.minimum((center - lower).sum(-1), (upper - center).sum(-1)),
        "entropy": -(center * np.log(center)).sum(axis=-1),
        "one_minus_max": 1 - center.max(axis=-1),
        "spread": 2 * (1 - square),
        "spread_bound": 2 * (1 - kept**2 / np.maximum(square, 1e-12)),
    }
    single = logits.dtype == np.float32
    for index, name in enumerate(SCORE_NAMES):
        np.testing.assert_allclose(
            result[:, index].astype(np.float64),
            wanted[name].astype(np.float64),
            rtol=2e-4 if single else 1e-9,
            atol=4e-6 if single else 1e-13,
            err_msg=name,
        )


@given(heads())
def test_radii_of_zero_give_scores_of_exactly_zero(head: tuple[Floats, Floats]) -> None:
    logits, _ = head
    interval = interval_softmax(logits, np.zeros_like(logits))

    for score in (volume, disparity, uncertainty, rejection_bound):
        assert not score(interval).any()


@given(intervals())
def test_scores_are_finite_and_not_negative(interval: Interval) -> None:
    size = interval.radius.shape[-1]

    result = scores(interval, codebook(size).astype(interval.radius.dtype))

    assert result.dtype == interval.radius.dtype
    assert np.isfinite(result).all()
    assert (result >= 0).all()
    limits = [np.inf, 1 + 1e-6, math.log(size) + 1e-4, 1 - 1 / size + 1e-6, 2 + 1e-6, 2 + 1e-5]
    assert (result <= np.array(limits)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_broken_logits_give_no_finite_score(bad: float) -> None:
    logits = np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32)
    logits[0, 7] = bad
    logits[1] = bad
    radius = np.ones_like(logits)

    with np.errstate(all="ignore"):
        found = scores(interval_softmax(logits, radius), codebook(50))
        tempered = perturbation(logits)

    broken = [True, True, False]
    if bad == -math.inf:
        broken[0] = False  # one masked code is a law all the same
    for row, is_broken in enumerate(broken):
        assert np.isfinite(found[row]).all() != is_broken, row
        assert not (is_broken and np.isfinite(found[row]).any()), row
        assert np.isfinite(tempered[row]) != is_broken, row


def test_a_broken_radius_gives_no_finite_score_of_the_interval() -> None:
    radius = np.ones((1, 50), np.float32)
    radius[0, 3] = math.nan
    logits = np.random.default_rng(1).normal(size=(1, 50)).astype(np.float32)

    found = scores(interval_softmax(logits, radius), codebook(50))[0]

    named = dict(zip(SCORE_NAMES, found, strict=True))
    for name in ("uncertainty", "rejection_bound", "spread_bound"):
        assert not np.isfinite(named[name]), name


@given(intervals(sizes=(2, 3, 50)), st.integers(0, 2**32 - 1))
def test_no_law_inside_the_interval_has_a_larger_spread_than_the_bound(
    interval: Interval, seed: int
) -> None:
    codes = codebook(interval.radius.shape[-1])
    bound = spread_bound(interval, codes)

    for row in range(2):
        for law in laws_inside(interval, row, codes, seed):
            mean = law @ codes
            assert 2 * (1 - mean @ mean) <= bound[row] + 1e-5


def laws_inside(interval: Interval, row: int, codes: Floats, seed: int) -> list[Floats]:
    """Laws between the bounds: some at random, and one of large spread by Frank and Wolfe."""
    lower, upper = (np.asarray(side[row], np.float64) for side in (interval.lower, interval.upper))
    rng = np.random.default_rng(seed)
    found = [fill(lower, upper, rng.permutation(len(lower))) for _ in range(10)]
    law = fill(lower, upper, np.argsort(codes @ (np.asarray(interval.center[row]) @ codes)))
    for step in range(60):
        best = fill(lower, upper, np.argsort(codes @ (law @ codes)))
        law = law + (best - law) * 2 / (step + 2)
        found.append(law)
    return found


def fill(lower: Floats, upper: Floats, order: NDArray[np.int64]) -> Floats:
    """The law that gives codes, in order, as much as the bounds let them have."""
    room = (upper - lower)[order]
    given = np.clip(1 - lower.sum() - np.concatenate([[0], np.cumsum(room)[:-1]]), 0, room)
    law = lower.copy()
    law[order] += given
    return law


@given(heads())
def test_without_radii_the_spread_bound_is_the_spread(head: tuple[Floats, Floats]) -> None:
    logits, _ = head
    codes = codebook(logits.shape[-1]).astype(logits.dtype)
    interval = interval_softmax(logits, np.zeros_like(logits))

    np.testing.assert_array_equal(spread_bound(interval, codes), spread(interval, codes))


def test_the_perturbation_is_the_share_of_draws_that_differ() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=50) * 2
    temperatures = (np.arange(20) + 0.5) / 10
    drafts = draw(logits, gumbel(1, np.arange(40_000), 50))
    others = draw(
        logits / temperatures[np.arange(40_000) % 20, None], gumbel(2, np.arange(40_000), 50)
    )

    share = float((drafts != others).mean())

    assert abs(share - float(perturbation(logits))) < 4 * math.sqrt(0.25 / 40_000)


@given(heads(), st.floats(0, 1))
def test_volume_and_rejection_bound_grow_with_the_radius(
    head: tuple[Floats, Floats], share: float
) -> None:
    logits, radius = head
    rounding = 1 + 16 * float(np.finfo(logits.dtype).eps)

    small = interval_softmax(logits, radius * logits.dtype.type(share))
    large = interval_softmax(logits, radius)

    assert (volume(small) <= volume(large) * rounding).all()
    assert (rejection_bound(small) <= rejection_bound(large) * rounding).all()


@given(intervals())
def test_the_rejection_bound_is_at_most_half_the_volume(interval: Interval) -> None:
    rounding = 1 + 16 * float(np.finfo(interval.radius.dtype).eps)

    assert (rejection_bound(interval) <= volume(interval) / 2 * rounding).all()


@given(heads(), st.integers(0, 2**32 - 1))
def test_scores_do_not_depend_on_the_order_of_codes(head: tuple[Floats, Floats], seed: int) -> None:
    logits, radius = (array.astype(np.float64) for array in head)
    order = np.random.default_rng(seed).permutation(logits.shape[-1])
    codes = codebook(logits.shape[-1])

    result = scores(interval_softmax(logits, radius), codes)
    permuted = scores(interval_softmax(logits[:, order], radius[:, order]), codes[order])

    np.testing.assert_allclose(permuted, result, rtol=1e-9, atol=1e-12)


def test_a_flat_law_has_the_largest_entropy_and_a_peaked_one_none() -> None:
    flat = interval_softmax(np.zeros(1024), np.ones(1024))
    peaked = interval_softmax(np.r_[60.0, np.full(1023, -60.0)], np.ones(1024))

    assert entropy(flat) == pytest.approx(math.log(1024))
    assert one_minus_max(flat) == pytest.approx(1023 / 1024)
    assert entropy(peaked) < 1e-20
    assert 0 < one_minus_max(peaked) < 1e-20


def test_spread_is_the_mean_squared_distance_of_two_draws() -> None:
    interval = interval_softmax(RNG.normal(size=(3, 40)) * 2, np.zeros((3, 40)))
    codes = codebook(40)

    expected = [spread_by_pairs(law, codes) for law in interval.center]
    np.testing.assert_allclose(spread(interval, codes), expected)


def test_scores_that_are_not_numbers_stay_so() -> None:
    interval = interval_softmax(np.r_[np.nan, np.zeros(49)], np.ones(50))

    assert np.isnan(scores(interval, codebook(50))).all()


def naive_scalars(c: Floats, r: Floats, token: int, margin: float) -> list[float]:
    """The sixteen scalars, one by one, from their definitions in float64."""
    weights = np.exp(c - c.max())
    p = weights / weights.sum()
    a = np.log(p) - np.log([np.delete(p, i).sum() for i in range(len(p))])
    lower, upper = 1 / (1 + np.exp(r - a)), 1 / (1 + np.exp(-a - r))
    width = upper - lower
    ranked = np.sort(p)[::-1]
    return [
        math.log(lower[token]),
        math.log(p[token]),
        math.log(upper[token]),
        a[token] / 10,
        r[token],
        math.log(width.sum()),
        math.log(width.std()),
        min(1 - lower.sum(), upper.sum() - 1),
        -(p * np.log(p)).sum() / math.log(len(p)),
        ranked[0],
        ranked[0] - ranked[1],
        math.log(1 + (p > p[token]).sum()) / math.log(len(p)),
        r.mean(),
        r.max(),
        margin,
        1.0,
    ]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_feature_scalars_agree_with_their_definitions(kind: type[np.floating[Any]]) -> None:
    c, r = RNG.normal(size=(4, 50)) * 2, RNG.uniform(0.1, 2, size=(4, 50))
    token = np.array([0, 7, int(c[2].argmax()), 49])
    interval = interval_softmax(c.astype(kind), r.astype(kind))
    score = np.array([0.1, 0.2, 0.3, 0.4], kind)

    result = feature_scalars(interval, token, score, 0.25)

    expected = [naive_scalars(c[i], r[i], int(token[i]), score[i] - 0.25) for i in range(4)]
    assert result.dtype == kind
    assert result.shape == (4, FEATURE_SCALARS)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threshold", [math.inf, -math.inf])
def test_an_infinite_threshold_leaves_no_margin(threshold: float) -> None:
    interval = interval_softmax(RNG.normal(size=50), np.ones(50))

    result = feature_scalars(interval, np.array(3), np.array(0.2), threshold)

    assert result[14] == 0
    assert np.isfinite(result).all()


def test_feature_scalars_of_a_sure_head_are_finite() -> None:
    interval = interval_softmax(np.r_[60.0, np.full(1023, -60.0)].astype(np.float32),
                                np.zeros(1024, np.float32))  # fmt: skip

    result = feature_scalars(interval, np.array(1000), np.array(0, np.float32), 0.1)

    assert np.isfinite(result).all()
    assert result[5] == pytest.approx(math.log(1e-12))


@given(st.integers(0, 2**32 - 1))
def test_features_survive_quantisation_within_half_a_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.001, 1, FEATURE_SIZE).astype(np.float32)
    features = (rng.uniform(-127, 127, (5, FEATURE_SIZE)) * scale).astype(np.float32)

    steps = quantise_features(features, scale)

    assert steps.dtype == np.int8
    assert (np.abs(restore_features(steps, scale) - features) <= scale * 0.5001).all()


def test_a_feature_of_zero_stays_zero_and_extremes_are_clipped() -> None:
    scale = np.ones(4, np.float32)
    features = np.array([[0.0, 1e9, -1e9, np.nan], [0.5, 1.5, -0.5, np.inf]], np.float32)

    steps = quantise_features(features, scale)

    assert steps.tolist() == [[0, 127, -127, 0], [0, 2, 0, 127]]
    assert not restore_features(np.zeros((1, 4), np.int8), scale).any()
