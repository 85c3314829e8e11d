"""A threshold that was proven safe is safe as often as it says, and others are not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fleet.decoding.risk import Certified, Checked, certify, p_value
from fleet.errors import InvalidInputError

TOKENS = 40
LIMIT, ERROR = 0.10, 0.1
THRESHOLDS = np.linspace(0.02, 1, 50)
TRIALS = 300

Array = NDArray[np.float64]


def draw(rng: np.random.Generator, pictures: int, spread: float) -> tuple[Array, Array]:
    """Scores and mismatches [pictures, TOKENS]; pictures differ in how often the device errs.

    The chance of an error is the score times the picture's own trouble, whose mean is 1.
    """
    scores = rng.uniform(size=(pictures, TOKENS))
    trouble = rng.choice([1 - spread, 1 + spread], size=(pictures, 1))
    return scores, (rng.uniform(size=scores.shape) < scores * trouble / 2).astype(float)


def true_risk(threshold: float) -> float:
    """E[s / 2; s <= τ] over even scores."""
    return threshold**2 / 4


def checked(scores: Array, losses: Array) -> list[Checked]:
    weights = np.full(scores.shape[1], 1 / scores.shape[1])
    return [Checked(s, e, weights) for s, e in zip(scores, losses, strict=True)]


def by_picture(scores: Array, losses: Array) -> float:
    found = certify(checked(scores, losses), THRESHOLDS, limit=LIMIT, error=ERROR)
    return found.threshold if found else 0.0


def by_token(scores: Array, losses: Array) -> float:
    """As if every token were a picture of its own."""
    return by_picture(scores.reshape(-1, 1), losses.reshape(-1, 1))


def by_mean(scores: Array, losses: Array) -> float:
    """The largest threshold whose measured risk is within the limit, without a bound."""
    risks = [float((losses * (scores <= each)).mean()) for each in THRESHOLDS]
    safe = [t for t, risk in zip(THRESHOLDS, risks, strict=True) if risk <= LIMIT]
    return float(max(safe, default=0.0))


def failures(
    choose: Callable[[Array, Array], float], spread: float, pictures: int, trials: int = TRIALS
) -> float:
    """How often the chosen threshold's true risk is above the limit."""
    rng = np.random.default_rng(1)
    chosen = [choose(*draw(rng, pictures, spread)) for _ in range(trials)]
    return float(np.mean([true_risk(each) > LIMIT for each in chosen]))


@pytest.mark.parametrize("spread", [0.0, 0.9])
@pytest.mark.parametrize("pictures", [20, 120])
def test_the_risk_is_above_its_limit_no_more_often_than_promised(
    spread: float, pictures: int
) -> None:
    allowed = ERROR + 3 * math.sqrt(ERROR * (1 - ERROR) / TRIALS)

    assert failures(by_picture, spread, pictures) <= allowed


def test_without_a_bound_it_is_above_about_half_of_the_time() -> None:
    assert failures(by_mean, 0.9, 120) > 0.3


def test_tokens_taken_for_pictures_break_the_promise() -> None:
    assert failures(by_token, 0.9, 10, trials=60) > 0.25


def test_more_pictures_allow_a_higher_threshold_up_to_the_best_one() -> None:
    rng = np.random.default_rng(3)
    best = math.sqrt(4 * LIMIT)

    found = [by_picture(*draw(rng, count, 0.5)) for count in (20, 200, 4000)]

    assert found == sorted(found)
    assert 0.95 * best < found[-1] <= best + 0.02


def test_a_p_value_is_rarely_small_where_the_hypothesis_holds() -> None:
    rng = np.random.default_rng(5)
    values = [p_value((rng.uniform(size=60) < 0.1).astype(float), 0.1, 0.1) for _ in range(2000)]

    for level in (0.02, 0.1, 0.3):
        assert np.mean(np.array(values) <= level) <= level + 3 * math.sqrt(level / 2000)


def test_it_says_what_it_measured() -> None:
    scores, losses = draw(np.random.default_rng(8), 400, 0.2)

    found = certify(checked(scores, losses), THRESHOLDS, limit=LIMIT, error=ERROR)

    assert isinstance(found, Certified)
    local = scores <= found.threshold
    assert found.risk == pytest.approx((losses * local).mean())
    assert found.calls == pytest.approx(1 - local.mean())
    assert found.p_value <= ERROR


def test_scores_that_are_not_finite_are_never_local_and_cost_nothing() -> None:
    picture = Checked(np.array([math.nan, math.inf, -math.inf]), np.ones(3), np.full(3, 1 / 3))

    found = certify([picture] * 200, np.array([1e9]), limit=0.05, error=0.1)

    assert found is not None
    assert found.risk == 0.0
    assert found.calls == pytest.approx(1.0)


def test_too_few_or_bad_pictures_give_none() -> None:
    bad = Checked(np.array([0.0]), np.array([1.0]), np.array([1.0]))
    good = Checked(np.array([0.0]), np.array([0.0]), np.array([1.0]))

    assert certify([bad] * 500, np.array([0.5]), limit=0.1, error=0.1) is None
    assert certify([good], np.array([0.5]), limit=0.1, error=0.1) is None
    assert certify([good] * 60, np.array([0.5]), limit=0.1, error=0.1) is not None


def test_what_is_no_picture_is_refused() -> None:
    one = np.ones(1)
    for scores, losses, weights in (
        (one, np.ones(2), one),
        (one, 2 * one, one),
        (one, one, 2 * one),
        (one, -one, one),
    ):
        with pytest.raises(InvalidInputError):
            Checked(scores, losses, weights)
    with pytest.raises(InvalidInputError, match="at least one picture"):
        certify([], THRESHOLDS, limit=0.1, error=0.1)
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        certify([Checked(one, one, one)], THRESHOLDS, limit=1.5, error=0.1)
