"""Laws of the interval softmax."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.errors import InvalidInputError
from fleet.interval import Interval, interval_softmax, log_odds
from tests.unit.decoding.laws import (
    Exact,
    Floats,
    exact_odds,
    heads,
    intervals,
    logistic,
    total_variation,
)

WIDE = (16_384, 65_536)


def slack(array: Floats) -> float:
    """What rounding may do to a sum of probabilities: a few units in the last place."""
    return 12 * float(np.finfo(array.dtype).eps)


def assert_is_an_interval(interval: Interval) -> None:
    lower, center, upper = interval.lower, interval.center, interval.upper
    assert (lower > 0).all()
    assert (lower <= center).all()
    assert (center <= upper).all()
    assert (upper < 1).all()
    assert (lower.sum(axis=-1, dtype=np.float64) <= 1 + slack(lower)).all()
    assert (upper.sum(axis=-1, dtype=np.float64) >= 1 - slack(upper)).all()


def assert_agrees(interval: Interval, logits: Floats, radius: Floats) -> None:
    odds: Exact = exact_odds(logits)
    wide = radius.astype(np.longdouble)
    close: dict[str, Any] = {
        "rtol": 1e-4 if logits.dtype == np.float32 else 1e-11,
        "atol": 1e-35,
    }

    np.testing.assert_allclose(interval.lower, logistic(odds - wide), **close)
    np.testing.assert_allclose(interval.center, logistic(odds), **close)
    np.testing.assert_allclose(interval.upper, logistic(odds + wide), **close)
    width = np.sinh(wide) / (np.cosh(odds) + np.cosh(wide))
    np.testing.assert_allclose(interval.width, width, **close)
    absolute = 1e-6 if logits.dtype == np.float32 else 1e-14
    for bound, exact in ((interval.lower, odds - wide), (interval.upper, odds + wide)):
        assert np.abs(bound - logistic(exact)).max() <= absolute


@given(intervals())
def test_bounds_are_ordered_within_zero_and_one_and_sum_to_either_side_of_one(
    interval: Interval,
) -> None:
    assert_is_an_interval(interval)


@settings(max_examples=6)
@given(intervals(WIDE))
def test_bounds_are_ordered_for_large_vocabularies(interval: Interval) -> None:
    assert_is_an_interval(interval)


@given(heads())
def test_every_bound_agrees_with_its_definition_in_higher_precision(
    head: tuple[Floats, Floats],
) -> None:
    assert_agrees(interval_softmax(*head), *head)


@settings(max_examples=6)
@given(heads(WIDE))
def test_every_bound_agrees_with_its_definition_for_large_vocabularies(
    head: tuple[Floats, Floats],
) -> None:
    assert_agrees(interval_softmax(*head), *head)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("odds", [60.0, 40.0, 20.0, -60.0])
def test_bounds_stay_inside_zero_and_one_where_the_logistic_function_rounds_to_one(
    kind: type[np.floating[Any]], odds: float
) -> None:
    interval = Interval(np.array([odds, -odds], kind), np.array([10, 10], kind))

    assert_is_an_interval(interval)
    assert np.isfinite([interval.log_lower, interval.log_center, interval.log_upper]).all()


@given(heads())
def test_a_radius_of_zero_leaves_nothing_but_the_center(head: tuple[Floats, Floats]) -> None:
    logits, _ = head

    interval = interval_softmax(logits, np.zeros_like(logits))

    assert (interval.lower == interval.center).all()
    assert (interval.upper == interval.center).all()
    assert not interval.width.any()
    assert not interval.below.any()
    assert not interval.above.any()


@given(intervals())
def test_differences_are_those_of_the_bounds(interval: Interval) -> None:
    close: dict[str, Any] = {"rtol": 0, "atol": 4 * float(np.finfo(interval.width.dtype).eps)}

    np.testing.assert_allclose(interval.below, interval.center - interval.lower, **close)
    np.testing.assert_allclose(interval.above, interval.upper - interval.center, **close)
    np.testing.assert_allclose(interval.width, interval.upper - interval.lower, **close)
    np.testing.assert_allclose(interval.width, interval.below + interval.above, **close)


@given(intervals())
def test_logarithms_are_those_of_the_bounds(interval: Interval) -> None:
    close: dict[str, Any] = {"rtol": 0, "atol": 2e-5}

    np.testing.assert_allclose(interval.log_lower, np.log(interval.lower), **close)
    np.testing.assert_allclose(interval.log_center, np.log(interval.center), **close)
    np.testing.assert_allclose(interval.log_upper, np.log(interval.upper), **close)


@given(heads(), st.floats(0, 1))
def test_a_larger_radius_gives_an_interval_that_contains_the_smaller(
    head: tuple[Floats, Floats], share: float
) -> None:
    logits, radius = head
    rounding = 1 + 4 * float(np.finfo(logits.dtype).eps)

    small = interval_softmax(logits, radius * logits.dtype.type(share))
    large = interval_softmax(logits, radius)

    assert (large.lower <= small.lower * rounding).all()
    assert (small.upper <= large.upper * rounding).all()
    assert (small.width <= large.width * rounding).all()


@given(heads(), st.integers(0, 2**32 - 1))
def test_permuted_codes_have_permuted_bounds(head: tuple[Floats, Floats], seed: int) -> None:
    logits, radius = head
    order = np.random.default_rng(seed).permutation(logits.shape[-1])

    interval = interval_softmax(logits, radius)
    permuted = interval_softmax(logits[:, order], radius[:, order])

    rtol = 1e-5 if logits.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(permuted.lower, interval.lower[:, order], rtol=rtol)
    np.testing.assert_allclose(permuted.upper, interval.upper[:, order], rtol=rtol)


@given(heads(), st.sampled_from([-32.0, -1.0, 0.5, 64.0]))
def test_a_shift_of_all_logits_changes_nothing(head: tuple[Floats, Floats], shift: float) -> None:
    logits, radius = head[0].astype(np.float64), head[1].astype(np.float64)

    interval = interval_softmax(logits, radius)
    shifted = interval_softmax(logits + shift, radius)

    np.testing.assert_allclose(shifted.lower, interval.lower, rtol=1e-11)
    np.testing.assert_allclose(shifted.upper, interval.upper, rtol=1e-11)


@given(heads((2, 3, 50)), st.floats(-1, 1), st.integers(0, 2**31))
def test_one_logit_moved_within_its_radius_keeps_its_probability_within_the_bounds(
    head: tuple[Floats, Floats], share: float, pick: int
) -> None:
    logits, radius = head[0].astype(np.float64), head[1].astype(np.float64)
    code = pick % logits.shape[-1]
    interval = interval_softmax(logits, radius)
    moved = logits.copy()
    moved[:, code] += share * radius[:, code]

    probability = logistic(exact_odds(moved))[:, code]

    assert (interval.lower[:, code] <= probability * (1 + 1e-11)).all()
    assert (probability <= interval.upper[:, code] * (1 + 1e-11)).all()


@given(intervals(), st.integers(0, 2**32 - 1), st.booleans())
@example(interval_softmax(np.zeros((2, 4)), np.full((2, 4), 10.0)), 0, True)
def test_no_law_inside_the_interval_is_further_from_the_center_than_the_rejection_bound(
    interval: Interval, seed: int, corner: bool
) -> None:
    bound = np.minimum(
        interval.below.sum(axis=-1, dtype=np.float64), interval.above.sum(axis=-1, dtype=np.float64)
    )

    law = law_inside(interval, np.random.default_rng(seed), corner=corner)

    np.testing.assert_allclose(law.sum(axis=-1), 1, atol=1e-6)
    assert (total_variation(interval.center, law) <= bound + 2e-6).all()
    assert (bound <= interval.width.sum(axis=-1, dtype=np.float64) / 2 + 1e-6).all()


def law_inside(interval: Interval, rng: np.random.Generator, *, corner: bool) -> Floats:
    """A law between the bounds: a random point of the box, moved until it sums to 1."""
    lower, upper = interval.lower.astype(np.float64), interval.upper.astype(np.float64)
    share = rng.random(lower.shape)
    point = lower + (np.round(share) if corner else share) * (upper - lower)
    total = point.sum(axis=-1, keepdims=True)
    end = np.where(total > 1, lower, upper)
    span = total - end.sum(axis=-1, keepdims=True)
    step = np.divide(total - 1, span, out=np.zeros_like(span), where=np.abs(span) > 1e-12)
    law: Floats = point + np.clip(step, 0, 1) * (end - point)
    return law


def test_masked_codes_get_the_lowest_probability() -> None:
    logits = np.array([0.0, -np.inf, 1.0, -np.inf], np.float32)

    interval = interval_softmax(logits, np.zeros(4, np.float32))

    np.testing.assert_array_equal(log_odds(logits)[[1, 3]], -60)
    np.testing.assert_allclose(interval.center[[0, 2]], [0.26894142, 0.73105858], rtol=1e-6)


def test_a_head_that_is_not_a_number_gives_bounds_that_are_not() -> None:
    logits = np.array([0.0, np.nan, 1.0])

    interval = interval_softmax(logits, np.zeros(3))

    assert np.isnan(interval.center).all()
    assert np.isnan(interval.width).all()


def test_radii_beyond_the_largest_count_as_the_largest() -> None:
    interval = interval_softmax(np.zeros(3), np.array([10.0, 11.0, np.inf]))

    np.testing.assert_array_equal(interval.radius, 10)


@pytest.mark.parametrize(
    ("odds", "radius"),
    [
        (np.zeros(3), np.zeros(2)),
        (np.zeros(1), np.zeros(1)),
        (np.array(0.0), np.array(0.0)),
        (np.array([0.0, 61.0]), np.zeros(2)),
        (np.zeros(2), np.array([0.0, -0.1])),
        (np.zeros(2), np.array([0.0, 10.1])),
    ],
)
def test_an_interval_refuses_what_is_none(odds: Floats, radius: Floats) -> None:
    with pytest.raises(InvalidInputError):
        Interval(odds, radius)
