"""What decides a rollout: a surely worse canary goes back, one that had its time widens."""

import pytest

from cloud_hub.rollout.plan import Step, canaries, decide
from cloud_hub.store.rollouts import Figures

REST = Figures(judged=20_000, corrected=4_000, checked=5_000, mismatched=250)
LEAST = 500


@pytest.mark.parametrize(
    ("canary", "step", "why"),
    [
        (Figures(0, 0, 0, 0), "wait", "0 of 500 tokens"),
        (Figures(400, 80, 900, 45), "wait", "400 of 500 tokens"),
        (Figures(1000, 200, 600, 30), "widen", "after 600 tokens"),
        (Figures(1000, 150, 600, 20), "widen", "after 600 tokens"),
        (Figures(300, 150, 50, 2), "roll back", "corrections are at least 44"),
        (Figures(1000, 200, 600, 90), "roll back", "false accepts are at least 12"),
        (Figures(100, 22, 40, 3), "wait", "40 of 500 tokens"),  # worse, and not surely
    ],
)
def test_a_canary_waits_widens_or_goes_back(canary: Figures, step: Step, why: str) -> None:
    found = decide(canary, REST, LEAST)

    assert found.step == step
    assert why in found.why


def test_without_others_to_compare_with_a_canary_widens_in_time() -> None:
    nobody = Figures(0, 0, 0, 0)

    assert decide(Figures(600, 500, 600, 500), nobody, LEAST).step == "widen"


def test_canaries_are_a_share_at_least_one_and_others_for_another_version() -> None:
    nodes = [f"node-{index}" for index in range(50)]

    drawn = canaries(nodes, "v1", 0.1)

    assert drawn == canaries(list(reversed(nodes)), "v1", 0.1)
    assert len(drawn) == 5
    assert drawn != canaries(nodes, "v2", 0.1)
    assert len(canaries(nodes, "v1", 0.001)) == 1
