"""The threshold that spot checks prove safe."""

from dataclasses import replace

import numpy as np
import pytest

from cloud_hub.calibration import Wanted, calibrate
from cloud_hub.store.checks import CheckedPicture
from fleet.errors import InvalidInputError
from fleet.protocol.arrays import pack_scores, score_limit, unpack_scores

TOKENS, LOCAL = 200, 150
IN_FORCE = 0.5
WANTED = Wanted("mismatch", limit=0.05, error=0.1)


def picture(seed: int, checked: int = 40, judged: int = 10) -> CheckedPicture:
    """Scores up to 1; what is above 0.5 was judged. A token mismatches as often as its score."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.uniform(0, 0.5, checked), rng.uniform(0.5, 1, judged)])
    matches = rng.uniform(size=len(scores)) > scores
    return CheckedPicture(
        node="n1",
        generation=f"g{seed}",
        device_version="d1",
        cloud_version="c1",
        policy="spread",
        threshold=IN_FORCE,
        tokens=TOKENS,
        local_tokens=LOCAL,
        positions=np.arange(len(scores)),
        scores=np.frombuffer(pack_scores(scores), np.uint8),
        local=scores <= 0.5,
        matches=matches,
        harms=np.where(matches, 0.0, 2.0),
        probabilities=np.full(len(scores), 0.3),
    )


def pictures(count: int, judged: int = 10) -> list[CheckedPicture]:
    return [picture(seed, judged=judged) for seed in range(count)]


def true_risk(threshold: float) -> float:
    """Mean mismatch of a picture's tokens up to a threshold below the one in force.

    Local tokens' scores are even up to 0.5, and a token mismatches as often as its score.
    """
    return LOCAL / TOKENS * threshold**2


def test_the_threshold_keeps_the_limit_and_comes_near_it_with_many_pictures() -> None:
    few, many = calibrate(pictures(60), WANTED), calibrate(pictures(2000), WANTED)

    assert few.threshold <= many.threshold
    assert true_risk(many.threshold) <= WANTED.limit < true_risk(many.threshold * 1.25)
    assert many.risk == pytest.approx(true_risk(many.threshold), rel=0.1)
    assert (many.pictures, many.tokens_checked) == (2000, 100_000)
    assert (many.policy, many.device_version, many.threshold_in_force) == ("spread", "d1", 0.5)


def test_a_threshold_lies_between_two_codes_so_that_nothing_is_rounded_over_it() -> None:
    found = calibrate(pictures(60), WANTED)

    code = pack_scores(np.array([found.threshold * 0.999]))[0]
    assert found.threshold == score_limit(code)
    assert unpack_scores(bytes([code]))[0] < found.threshold < unpack_scores(bytes([code + 1]))[0]


def test_what_was_judged_allows_a_threshold_above_the_one_in_force() -> None:
    generous = replace(WANTED, limit=0.3)

    seen, unseen = calibrate(pictures(300), generous), calibrate(pictures(300, judged=0), generous)

    assert seen.threshold > IN_FORCE * 1.2
    # The border above the code of the threshold in force: what lies beyond was never seen.
    assert unseen.threshold <= score_limit(pack_scores(np.array([IN_FORCE]))[0])


def test_a_limit_on_harm_is_in_its_own_unit() -> None:
    harm = calibrate(pictures(300), Wanted("harm", limit=0.1, error=0.1))

    assert harm.risk == pytest.approx(2 * true_risk(harm.threshold), rel=0.15)
    assert 0.04 < harm.risk < 0.1


def test_codes_without_a_number_never_stay_local() -> None:
    broken = [
        replace(each, scores=np.full(50, 255, np.uint8), matches=np.zeros(50, bool))
        for each in pictures(100)
    ]

    found = calibrate(broken, WANTED)

    assert found.risk == 0.0
    assert found.calls == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("checked", "said"),
    [
        ([], "no picture was checked"),
        (pictures(1), "1 checked pictures prove no threshold"),
        ([*pictures(2), replace(picture(9), policy="entropy")], r"--policy: spread \(2\), entropy"),
        ([*pictures(2), replace(picture(9), device_version="d2")], r"--device-version: d1 \(2\)"),
        ([replace(picture(9), policy="spread+dynamic")], "moves within a picture"),
    ],
)
def test_what_proves_nothing_is_refused_with_what_to_do(
    checked: list[CheckedPicture], said: str
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        calibrate(checked, WANTED)
