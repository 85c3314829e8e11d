"""Who is faster where: by round trip, and by what a cloud's step costs."""

from pathlib import Path

import numpy as np
import pytest

from simulations.evaluation.clock.link import WIFI
from simulations.evaluation.clock.replay import Usage
from simulations.evaluation.clock.steps import ACCELERATOR, LENGTHS, StepCosts
from simulations.evaluation.jobs import Sample
from simulations.evaluation.latency import (
    BreakEven,
    Timing,
    best_lossless,
    break_even,
    named_crossings,
    timings,
)
from simulations.evaluation.latency_page import Latency, write_latency
from simulations.evaluation.methods import Method, cloud_only, device_only
from simulations.evaluation.moment import LOCAL, PREFIX, VERIFIED
from simulations.evaluation.rules.rounds import Chain, Relaxation, Tree
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.usage import SWEEP_MS

RULE = SamplingRule()
EQUAL = StepCosts("made up", 0.001, 0.001, (0.001,) * len(LENGTHS), 0.001)
CHAIN = Method("chain", Chain(2), RULE, exchange="rounds")


def drawn(
    method: Method, decisions: list[int], sent: list[int] | None = None
) -> tuple[Method, Sample]:
    row, none = np.array([decisions], np.uint8), np.zeros((1, len(decisions)), np.float32)
    sample = Sample(
        tokens=none.astype(np.uint16),
        decisions=row,
        sent=np.array([sent or [0] * len(decisions)], np.uint8),
        score=none,
        scores=none[..., None],
        drafts=np.full(row.shape, -1, np.int32),
        own=np.full(row.shape, -1, np.int32),
        pictures=np.zeros((1, 2, 2, 3), np.uint8),
        features=np.zeros((1, 4), np.float32),
    )
    return method, sample


def timing(name: str, at_0: float, at_100: float) -> Timing:
    sweep = {f"{ms:g} ms": at_0 + (at_100 - at_0) * ms / 100 for ms in SWEEP_MS}
    seconds = {"made up": {"WiFi": at_0, "5G": at_0, "4G": at_100, **sweep}}
    return Timing(name, Usage(1, 2, 3, 4, 5, 6, 7, 0.25), seconds, name == "cloud-only")


TIMED = [timing("ours", 1.0, 3.0), timing("cloud-only", 2.0, 2.0)]


DRAWN = [
    drawn(cloud_only(RULE), [PREFIX] * 90),
    drawn(device_only(RULE), [LOCAL] * 90),
    drawn(CHAIN, [VERIFIED, VERIFIED, PREFIX] * 30, [2, 0, 0] * 30),
]


def test_a_crossing_is_named() -> None:
    (found,) = named_crossings(TIMED, [("ours", "cloud-only"), ("ours", "nothing")])

    assert (found.first, found.second, found.costs) == ("ours", "cloud-only", "made up")
    assert list(found.at_ms) == pytest.approx([50])
    assert (found.faster_at_0, found.faster_at_100) == ("ours", "cloud-only")


def test_the_page_says_who_is_faster_where(tmp_path: Path) -> None:
    crossed = named_crossings(TIMED, [("ours", "cloud-only")])
    even = [BreakEven("ours", "cloud-only", {"WiFi": 0.04, "5G": 0.0728, "4G": None})]
    facts = dict.fromkeys(("command", "commit", "family", "pictures"), "1")

    write_latency(tmp_path / "page.md", Latency(TIMED, crossed, even, ACCELERATOR), facts)

    text = (tmp_path / "page.md").read_text()
    assert "| made up | ours | cloud-only | 50 ms | ours | cloud-only |" in text
    assert "| made up | 75 ms | 2.50 | 2.00 | 2.00 | cloud-only |" in text
    assert "| ours | 2 | 3 | 250 | 4 | 5 |" in text
    assert "the best lossless deployment is `cloud-only`. Ours is faster than `cloud-only`" in text
    assert "| ours | cloud-only | as it is | 72.8 ms, 20 steps | not at 10,240 ms |" in text
    assert (tmp_path / "page" / "latency.png").exists()


def test_the_best_lossless_is_another_where_a_forward_is_dear() -> None:
    timed = timings(DRAWN, (EQUAL, ACCELERATOR))

    # A round of two drafts: three steps for three tokens, as many as the cloud alone takes.
    names = [best_lossless(timed, name, "WiFi").name for name in timed[0].seconds]
    assert names == ["cloud-only", "chain, drafter in the cloud"]
    assert [each.name for each in timed if each.lossless] == [
        "cloud-only",
        "chain, drafter in the cloud",
        "chain, drafts over the link",
    ]


def test_relaxed_trees_are_not_lossless() -> None:
    relaxed = Tree(relaxation=Relaxation(0.1, 0.1))
    tree = drawn(Method("relaxed", relaxed, RULE, exchange="rounds"), [VERIFIED] * 4, [4] * 4)

    assert not any(each.lossless for each in timings([tree], (EQUAL,)))


def test_a_step_is_named_from_which_a_chain_over_the_link_pays() -> None:
    pairs = [("chain, drafts over the link", "cloud-only"), ("device-only", "cloud-only"),
             ("cloud-only", "device-only"), ("nobody", "cloud-only")]  # fmt: skip

    chain, device, cloud = break_even(DRAWN, EQUAL, pairs)

    # 30 rounds cost 60 drafts and 30 round trips, and save 60 forwards but the first round trip.
    expected = 0.001 + 29 * WIFI.rtt_s / 60
    assert chain.step_s["WiFi"] == pytest.approx(expected, rel=0.15)
    assert device.step_s == {"WiFi": 0.001, "5G": 0.001, "4G": 0.001}
    assert set(cloud.step_s.values()) == {None}


def test_costs_come_back_from_their_file(tmp_path: Path) -> None:
    ACCELERATOR.save(tmp_path / "steps.json")

    assert StepCosts.load(tmp_path / "steps.json") == ACCELERATOR
