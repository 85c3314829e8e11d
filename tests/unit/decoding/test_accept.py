"""The device's decision, and what it remembers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decoding.accept import (
    START,
    Decision,
    Policy,
    Track,
    asks,
    decide,
    device_only,
    follow,
    score_of,
    verify_all,
)
from fleet.decoding.noise import coin
from fleet.decoding.uncertainty import perturbation
from fleet.errors import InvalidInputError
from fleet.prediction import (
    FEATURE_SIZE,
    POLICY_SCORES,
    SCORE_NAMES,
    PolicyScore,
    Prediction,
    ScoreName,
)

SPREAD = Policy("spread", 0.3)


def predict(scores: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Prediction:
    logits = np.arange(5.0)
    return Prediction(3, 7, scores, np.zeros(FEATURE_SIZE), np.zeros(4), logits)


@pytest.mark.parametrize("name", POLICY_SCORES)
def test_a_score_up_to_the_threshold_is_accepted(name: PolicyScore) -> None:
    policy = Policy(name, 0.2)

    assert decide(policy, 0.2, 3) is Decision.ACCEPT
    assert decide(policy, 0.0, 3) is Decision.ACCEPT
    assert decide(policy, math.nextafter(0.2, 1), 3) is Decision.VERIFY


def test_a_score_of_zero_is_accepted_at_a_threshold_of_zero() -> None:
    assert decide(Policy("uncertainty", 0.0), 0.0, 0) is Decision.ACCEPT


@pytest.mark.parametrize("name", POLICY_SCORES)
@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_asks_the_cloud(name: PolicyScore, score: float) -> None:
    for policy in (Policy(name, 1e9), Policy(name, 1e9, call_share=0.2, max_run=4)):
        assert decide(policy, score, 1) is Decision.VERIFY
    assert decide(verify_all(), score, 1) is Decision.VERIFY


@pytest.mark.parametrize("name", SCORE_NAMES)
def test_each_score_is_the_one_that_its_policy_compares(name: ScoreName) -> None:
    prediction = predict(np.arange(len(SCORE_NAMES)) / 10)

    assert score_of(prediction, Policy(name, 1.0), 5) == SCORE_NAMES.index(name) / 10


def test_a_score_that_a_bundle_does_not_give_is_not_a_number_so_the_cloud_is_asked() -> None:
    old = predict(np.zeros(5))
    policy = Policy("spread_bound", 1.0)

    score = score_of(old, policy, 5)

    assert math.isnan(score)
    assert decide(policy, score, 3) is Decision.VERIFY


def test_perturbation_comes_from_the_logits_and_asks_the_cloud_without_them() -> None:
    prediction = predict(np.zeros(6))
    bare = Prediction(3, 7, np.zeros(6), np.zeros(FEATURE_SIZE), np.zeros(4))
    policy = Policy("perturbation", 0.99)

    assert score_of(prediction, policy, 5) == perturbation(np.arange(5.0))
    assert math.isnan(score_of(bare, policy, 5))


def test_the_coin_is_even_and_a_function_of_seed_and_position() -> None:
    policy, positions = Policy("random", 0.745), np.arange(4000)
    prediction = predict(np.zeros(6))

    asked = asks(policy, coin(9, positions), 0)

    assert abs(asked.mean() - 0.255) < 4 * math.sqrt(0.255 * 0.745 / 4000)
    assert score_of(prediction, policy, 9) == coin(9, positions)[3]
    assert score_of(prediction, policy, 9) != score_of(prediction, policy, 10)


@pytest.mark.parametrize("score", [0.0, 1.0, math.nan, math.inf])
def test_verify_all_always_asks_and_device_only_never_does(score: float) -> None:
    assert decide(verify_all(), score, 0) is Decision.VERIFY
    assert decide(device_only(), score, 0) is Decision.ACCEPT


def test_a_cap_verifies_the_token_after_so_many_accepted_ones() -> None:
    policy, track, asked = Policy("spread", math.inf, max_run=3), START, []
    for position in range(12):
        asked.append(bool(asks(policy, np.float64(0), position, track)))
        track = follow(policy, track, asked[-1])

    assert asked == [False, False, False, True] * 3


def test_the_first_token_of_each_row_is_verified_where_rows_are_asked_for() -> None:
    policy = Policy("spread", math.inf, row_length=4)

    asked = [bool(asks(policy, np.float64(0), position)) for position in range(9)]

    assert [position for position in range(9) if asked[position]] == [0, 4, 8]


def test_a_dynamic_threshold_moves_by_what_was_asked_and_stays_within_its_clamp() -> None:
    policy = Policy("spread", 0.3, call_share=0.2)

    once = follow(policy, START, asked=True)
    assert once.shift == pytest.approx(0.05 * 0.8)
    assert decide(policy, 0.3 * math.exp(0.039), 5, once) is Decision.ACCEPT
    assert decide(policy, 0.3 * math.exp(0.041), 5, once) is Decision.VERIFY

    for asked in (True, False):
        track = START
        for _ in range(1000):
            track = follow(policy, track, asked)
        assert track.shift == (1.0 if asked else -1.0)


def test_a_dynamic_threshold_keeps_the_share_that_a_fixed_one_loses() -> None:
    rng = np.random.default_rng(2)
    scores = rng.uniform(size=20_000) * 1.3  # harder than what was calibrated on
    fixed, dynamic = Policy("spread", 0.75), Policy("spread", 0.75, call_share=0.25)

    shares = []
    for policy in (fixed, dynamic):
        track, asked = START, 0
        for position, score in enumerate(scores):
            verify = bool(asks(policy, score, position, track))
            asked += verify
            track = follow(policy, track, verify)
        shares.append(asked / len(scores))

    assert shares[0] > 0.40
    assert abs(shares[1] - 0.25) < 0.01


@pytest.mark.parametrize("share", [0.05, 0.15, 0.5])
def test_a_firm_share_is_kept_in_one_picture_far_from_the_calibrated_one(share: float) -> None:
    scores = np.random.default_rng(3).lognormal(sigma=1.0, size=240)
    firm = Policy("spread", 2.0, call_share=share, firm=True)  # a quarter of the scores is above

    track, asked = START, 0
    for position, score in enumerate(scores):
        verify = decide(firm, float(score), position, track) is Decision.VERIFY
        asked += verify
        track = follow(firm, track, verify)

    assert firm.name == "spread+budget"
    assert abs(asked / len(scores) - share) < 0.03
    assert abs(float(track.shift)) <= 2.5


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=20),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 3),
    st.integers(0, 4),
)
def test_arrays_decide_as_numbers_do(
    scores: list[list[float]], share: float, max_run: int, row: int
) -> None:
    policy = Policy("spread", 0.5, share, max_run, row)
    together, alone = Track(np.zeros(3), np.zeros(3, np.int64)), [START] * 3

    for position, line in enumerate(scores):
        asked = asks(policy, np.array(line), position, together)
        one_by_one = [
            decide(policy, score, position, track) is Decision.VERIFY
            for score, track in zip(line, alone, strict=True)
        ]
        assert asked.tolist() == one_by_one
        together = follow(policy, together, asked)
        alone = [follow(policy, *each) for each in zip(alone, one_by_one, strict=True)]


def test_a_policy_is_named_for_what_it_does() -> None:
    assert Policy("spread", 0.3).name == "spread"
    assert Policy("spread", math.inf).name == device_only().name == "device_only"
    assert Policy("spread", -math.inf).name == verify_all().name == "verify_all"
    assert Policy("spread", 0.3, 0.2, 12, 16).name == "spread+dynamic+run12+rows"
    assert Policy("spread", math.inf, max_run=12).name == "device_only+run12"


def test_a_policy_refuses_what_it_cannot_follow() -> None:
    with pytest.raises(InvalidInputError, match="confidence"):
        Policy("confidence", 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="calibrate"):
        Policy("entropy", math.nan)
    with pytest.raises(InvalidInputError, match="call share"):
        Policy("entropy", 0.1, max_run=-1)
    for threshold in (0.0, math.inf, -math.inf):
        with pytest.raises(InvalidInputError, match="dynamic"):
            Policy("entropy", threshold, call_share=0.2)


def test_a_prediction_refuses_arrays_of_another_shape() -> None:
    with pytest.raises(InvalidInputError, match="up to 6 scores and 48 features"):
        Prediction(0, 0, np.zeros(7), np.zeros(FEATURE_SIZE), np.zeros(1))
