"""What decides a rollout: a surely worse canary goes back, one that had its time widens."""

import numpy as np
import pytest
from numpy.typing import NDArray

from cloud_hub.rollout.plan import Step, canaries, decide, design_effect
from cloud_hub.store.rollouts import Figures

LEAST = 500


def figures(
    judged: int,
    corrected: int,
    checked: int,
    mismatched: int,
    *,
    pictures: int = 40,
    alike: float = 1,
) -> Figures:
    """Figures of pictures in which one token of `alike` says something of its own."""
    rate = corrected / judged if judged else 0.0
    deviation = alike * rate * (1 - rate) * judged * (pictures - 1) / pictures
    return Figures(judged, corrected, checked, mismatched, pictures, deviation)


REST = figures(20_000, 4_000, 5_000, 250)


@pytest.mark.parametrize(
    ("canary", "step", "why"),
    [
        (Figures(0, 0, 0, 0, 0, 0.0), "wait", "0 of 500 tokens"),
        (figures(400, 80, 900, 45), "wait", "400 of 500 tokens"),
        (figures(1000, 200, 600, 30), "widen", "after 600 tokens"),
        (figures(1000, 150, 600, 20), "widen", "after 600 tokens"),
        (figures(300, 150, 50, 2), "roll back", "corrections are at least 40.6% on the canary"),
        (figures(1000, 200, 600, 90), "roll back", "false accepts are at least 10.8%"),
        (figures(100, 22, 40, 3), "wait", "40 of 500 tokens"),  # worse, and not surely
        # Four pictures, however bad, are a caption's luck.
        (figures(300, 290, 50, 2, pictures=4), "wait", "50 of 500 tokens"),
        (figures(900, 870, 600, 20, pictures=4), "wait", "4 of 5 pictures"),
    ],
)
def test_a_canary_waits_widens_or_goes_back(canary: Figures, step: Step, why: str) -> None:
    found = decide(canary, REST, LEAST)

    assert found.step == step
    assert why in found.why


def test_tokens_that_are_alike_within_a_picture_count_for_less() -> None:
    """The same counts: surely worse as independent tokens, not as six whole pictures."""
    rest = figures(723, 220, 100, 5, pictures=6, alike=8)

    assert decide(figures(1145, 480, 200, 10, pictures=6), REST, LEAST).step == "roll back"
    assert decide(figures(1145, 480, 200, 10, pictures=6, alike=8), rest, LEAST).step == "wait"
    assert design_effect(REST, figures(1000, 300, 0, 0, alike=1)) == pytest.approx(1)
    assert design_effect(rest, rest) == pytest.approx(8)


def test_a_version_that_is_no_worse_seldom_goes_back_however_often_one_looks() -> None:
    """Pictures with a rate of their own, of two equal versions, looked at after each."""
    rng = np.random.default_rng(5)
    gone = 0
    for _ in range(200):
        arms = [rng.beta(4, 6, 60), rng.beta(4, 6, 60)]
        fallen = [rng.binomial(70, rates) for rates in arms]
        for seen in range(1, 61):
            canary, rest = (of_pictures(each[:seen]) for each in fallen)
            if decide(canary, rest, LEAST).step == "roll back":
                gone += 1
                break

    assert gone <= 10  # as independent tokens at 95% it is 113 of 200


def of_pictures(corrected: NDArray[np.int64]) -> Figures:
    judged = np.full(len(corrected), 70)
    rate = corrected.sum() / judged.sum()
    deviation = float(((corrected - rate * judged) ** 2).sum())
    return Figures(int(judged.sum()), int(corrected.sum()), 0, 0, len(judged), deviation)


def test_without_others_to_compare_with_a_canary_widens_in_time() -> None:
    nobody = Figures(0, 0, 0, 0, 0, 0.0)

    assert decide(figures(600, 500, 600, 500), nobody, LEAST).step == "widen"


def test_canaries_are_a_share_at_least_one_and_others_for_another_version() -> None:
    nodes = [f"node-{index}" for index in range(50)]

    drawn = canaries(nodes, "v1", 0.1)

    assert drawn == canaries(list(reversed(nodes)), "v1", 0.1)
    assert len(drawn) == 5
    assert drawn != canaries(nodes, "v2", 0.1)
    assert len(canaries(nodes, "v1", 0.001)) == 1
    assert len(canaries(nodes[:3], "v1", 0.34)) == 1
