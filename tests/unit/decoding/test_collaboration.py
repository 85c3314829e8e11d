"""Laws of a whole picture, on the toy decoder."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decoding.accept import Policy, device_only, verify_all
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw
from fleet.decoding.verify import SHARED_NOISE, Rule
from fleet.prediction import POLICY_SCORES, SCORE_NAMES
from tests.unit.decoding.laws import chi_square_z, normal_deviate
from tests.unit.decoding.toy import (
    LENGTH,
    START,
    SYMBOLS,
    Pair,
    Picture,
    Timing,
    alone,
    decode,
    make_pair,
)

timings = st.builds(
    Timing,
    window=st.integers(0, LENGTH),
    in_flight=st.integers(1, 4),
    use_bonus=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
seeds = st.integers(0, 2**63 - 1)
EXACT, RELAXED = Rule("residual"), Rule("residual", relaxation=3.0)


@cache
def pair() -> Pair:
    return make_pair(1)


@cache
def half() -> Policy:
    """Asks about half of the tokens, by a score that does not know the device's errors."""
    spread = pair().scores[..., SCORE_NAMES.index("spread")]
    return Policy("spread", float(np.median(spread)))


@cache
def pictures(rule: Rule = SHARED_NOISE) -> list[Picture]:
    return [decode(pair(), half(), seed, Timing(seed=seed), rule) for seed in range(2000)]


def law_test(chosen: bool, rule: Rule = SHARED_NOISE) -> float:
    """How far the verified (or local) tokens of all pictures are from the cloud's law.

    Tokens are counted by rank in the difference of both models' logits, the one thing that
    must show if a token came from the device. Each token has its own law, so the statistic
    is the squared deviation over the sum of the laws' covariances (Mahalanobis).
    """
    deviation, covariance = np.zeros(SYMBOLS), np.zeros((SYMBOLS, SYMBOLS))
    for picture in pictures(rule):
        for position, token in enumerate(picture.tokens):
            if picture.verified[position] is chosen:
                previous = picture.tokens[position - 1] if position else START
                order = pair().ranking(position, previous)
                expected = pair().cloud_law(position, previous)[order]
                deviation += (order == token) - expected
                covariance += np.diag(expected) - np.outer(expected, expected)
    free = slice(1, None)  # the first cell is the rest of the others
    whitened = np.linalg.solve(covariance[free, free], deviation[free])
    return normal_deviate(float(deviation[free] @ whitened), SYMBOLS - 1)


@given(seeds, timings)
def test_verify_all_gives_the_cloud_s_picture_token_for_token(seed: int, timing: Timing) -> None:
    picture = decode(pair(), verify_all(), seed, timing)

    assert picture.tokens == alone(pair().cloud, seed)
    assert all(picture.verified)


@given(seeds, timings)
def test_device_only_gives_the_device_s_picture_and_asks_nothing(seed: int, timing: Timing) -> None:
    picture = decode(pair(), device_only(), seed, timing)

    assert picture.tokens == alone(pair().device, seed)
    assert picture.requests == 0
    assert not any(picture.verified)


@given(seeds, timings, st.integers(1, 3))
def test_a_capped_device_only_asks_in_a_fixed_rhythm(seed: int, timing: Timing, cap: int) -> None:
    picture = decode(pair(), Policy("spread", math.inf, max_run=cap), seed, timing)

    assert picture.verified == [position % (cap + 1) == cap for position in range(LENGTH)]


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any score at any threshold, with anything added."""
    name = draw(st.sampled_from(POLICY_SCORES))
    if name in SCORE_NAMES:
        threshold = float(
            np.quantile(pair().scores[..., SCORE_NAMES.index(name)], draw(st.floats(0, 1)))
        )
    else:
        threshold = draw(st.floats(0, 1))
    share = draw(st.sampled_from([0.0, 0.2, 0.6])) if threshold > 0 else 0.0
    return Policy(name, threshold, share, draw(st.integers(0, 4)), draw(st.sampled_from([0, 3])))


@given(seeds, timings, timings, policies(), st.sampled_from([SHARED_NOISE, EXACT, RELAXED]))
def test_a_picture_does_not_depend_on_window_batching_bonus_or_timing(
    seed: int, one: Timing, other: Timing, policy: Policy, rule: Rule
) -> None:
    first, second = (decode(pair(), policy, seed, timing, rule) for timing in (one, other))

    assert first.tokens == second.tokens
    assert first.verified == second.verified


def test_the_toy_corrects_and_uses_bonus_tokens_so_that_its_laws_say_something() -> None:
    local = sum(not mark for picture in pictures() for mark in picture.verified)

    assert 0.3 < local / (len(pictures()) * LENGTH) < 0.7
    assert sum(picture.corrected for picture in pictures()) > len(pictures()) / 3
    assert sum(picture.bonuses for picture in pictures()) > len(pictures()) / 10


def test_verified_tokens_follow_the_cloud_s_law() -> None:
    assert law_test(chosen=True) < 4


def test_so_do_those_of_the_residual_rule_and_the_relaxed_one_s_do_not() -> None:
    assert law_test(chosen=True, rule=EXACT) < 4
    assert law_test(chosen=True, rule=RELAXED) > 10


def test_local_tokens_do_not_so_the_test_above_can_tell() -> None:
    assert law_test(chosen=False) > 10


def test_a_decision_that_looks_at_the_draw_would_break_the_law() -> None:
    noise = gumbel(9, np.arange(20_000), SYMBOLS)
    cloud, device = pair().cloud[0, START], pair().device[0, START]
    drafts, draws = draw(device, noise), draw(cloud, noise)
    expected = pair().cloud_law(0, START)

    asked = drafts % 2 == 0

    counts = np.bincount(draws[asked], minlength=SYMBOLS).astype(float)
    assert chi_square_z(counts, expected * asked.sum()) > 10
    everything = np.bincount(draws, minlength=SYMBOLS).astype(float)
    assert chi_square_z(everything, expected * len(draws)) < 4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_device_that_equals_the_cloud_is_never_corrected(seed: int) -> None:
    twins = make_pair(seed, distance=0.0)

    picture = decode(twins, Policy("entropy", -math.inf), seed, Timing())

    assert picture.corrected == 0
    assert picture.tokens == alone(twins.cloud, seed)


def test_radii_of_zero_make_every_token_local_at_a_threshold_of_zero() -> None:
    twins = make_pair(3, distance=0.0)

    for name in ("uncertainty", "rejection_bound"):
        picture = decode(twins, Policy(name, 0.0), 5, Timing())
        assert not any(picture.verified)
