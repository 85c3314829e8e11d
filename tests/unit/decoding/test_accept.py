"""The device's decision."""

import math

import numpy as np
import pytest

from fleet.decoding.accept import Decision, Policy, decide, device_only, verify_all
from fleet.errors import InvalidInputError
from fleet.prediction import FEATURE_SIZE, SCORE_NAMES, Prediction, ScoreName


def predict(value: float, name: ScoreName = "uncertainty") -> Prediction:
    scores = np.full(len(SCORE_NAMES), 0.5)
    scores[SCORE_NAMES.index(name)] = value
    return Prediction(3, 7, scores, np.zeros(FEATURE_SIZE), np.zeros(4))


@pytest.mark.parametrize("name", SCORE_NAMES)
def test_a_score_up_to_the_threshold_is_accepted(name: ScoreName) -> None:
    policy = Policy(name, 0.2)

    assert decide(predict(0.2, name), policy) is Decision.ACCEPT
    assert decide(predict(0.0, name), policy) is Decision.ACCEPT
    assert decide(predict(math.nextafter(0.2, 1), name), policy) is Decision.VERIFY


def test_a_score_of_zero_is_accepted_at_a_threshold_of_zero() -> None:
    assert decide(predict(0.0), Policy("uncertainty", 0.0)) is Decision.ACCEPT


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_asks_the_cloud(score: float) -> None:
    assert decide(predict(score), Policy("uncertainty", 1e9)) is Decision.VERIFY
    assert decide(predict(score), verify_all()) is Decision.VERIFY


@pytest.mark.parametrize("score", [0.0, 1.0, math.nan, math.inf])
def test_verify_all_always_asks_and_device_only_never_does(score: float) -> None:
    assert decide(predict(score), verify_all()) is Decision.VERIFY
    assert decide(predict(score), device_only()) is Decision.ACCEPT


def test_a_policy_is_named_for_what_it_does() -> None:
    assert Policy("spread", 0.3).name == "spread"
    assert Policy("spread", math.inf).name == device_only().name == "device_only"
    assert Policy("spread", -math.inf).name == verify_all().name == "verify_all"


def test_a_policy_refuses_an_unknown_score_and_a_threshold_that_is_not_a_number() -> None:
    with pytest.raises(InvalidInputError, match="confidence"):
        Policy("confidence", 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="calibrate"):
        Policy("entropy", math.nan)


def test_a_prediction_refuses_arrays_of_another_shape() -> None:
    with pytest.raises(InvalidInputError, match="5 scores and 48 features"):
        Prediction(0, 0, np.zeros(4), np.zeros(FEATURE_SIZE), np.zeros(1))
