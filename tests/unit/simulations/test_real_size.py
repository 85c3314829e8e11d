"""Recorded decisions against made-up times of a large model."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import CapacityError, InvalidInputError, OutputError
from fleet.models.formats.llamagen import Size
from simulations.evaluation.clock.steps import LENGTHS, StepCosts
from simulations.evaluation.methods import Exchange
from simulations.real_size import bench, device, stories
from simulations.real_size.stories import Recorded
from simulations.real_size.times import Times

TOKENS, PREFIX = 64, 4
CLOUD, LOCAL, VERIFIED, CORRECTED = range(4)
# A forward of n tokens takes n + 9 seconds, a tree 50; the device takes none.
COSTS = StepCosts("made up", 0.0, 0.0, tuple(n + 9.0 for n in LENGTHS), 50.0)


def recorded(
    name: str, exchange: Exchange, decisions: list[int], sent: int = 0, levels: int = 0
) -> Recorded:
    row = np.array([CLOUD] * PREFIX + decisions * (60 // len(decisions)), np.uint8)
    drafts = np.zeros(TOKENS, np.uint8)
    if sent:
        drafts[:: sent + 1] = sent
    return Recorded(name, exchange, levels, PREFIX, row[None], drafts[None])


ALONE = recorded("cloud-only", "stream", [CLOUD])
WAITING = recorded("waiting", "wait", [LOCAL, LOCAL, VERIFIED])
ROUNDS = recorded("rounds", "rounds", [CLOUD], sent=3)
TREES = recorded("trees", "rounds", [CLOUD], sent=3, levels=4)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, bench.RealSize]:
    monkeypatch.setattr(bench, "measure", lambda *_: COSTS)
    found = bench.bench(
        [ALONE, WAITING, ROUNDS, TREES], ["XL"], "fp32", rounds=1, times=Times(None, 0.0)
    )
    return {row.method: row for row in found}


def test_cloud_only_takes_a_forward_a_token(rows: dict[str, bench.RealSize]) -> None:
    alone = rows["cloud-only"]

    assert (alone.calls, alone.forwards, alone.ratio) == (1, 1, 1)
    assert alone.cloud_s == TOKENS * 10
    assert (alone.step_s, alone.span_8) == (10, 1.7)


def test_a_question_takes_one_forward_over_what_the_cloud_has_not_seen(
    rows: dict[str, bench.RealSize],
) -> None:
    waiting = rows["waiting"]

    # The prefix takes 4 forwards of one token; every third token of the other 60 is asked about,
    # over the three tokens before it, of which the first question has the prefix's last.
    assert waiting.calls == (PREFIX + 20) / TOKENS
    assert waiting.forwards == (PREFIX + 20) / TOKENS
    assert waiting.cloud_s == pytest.approx(4 * 10 + 20 * (3 + 9), rel=0.01)
    assert waiting.ratio == pytest.approx(640 / waiting.cloud_s)


def test_a_round_takes_one_forward_over_its_drafts_and_one_more(
    rows: dict[str, bench.RealSize],
) -> None:
    assert rows["rounds"].cloud_s == 16 * (4 + 9)
    assert rows["trees"].cloud_s == 16 * 50


def test_a_slower_link_takes_longer(rows: dict[str, bench.RealSize]) -> None:
    waiting = rows["waiting"]

    assert waiting.cloud_s < waiting.wifi_s < waiting.five_g_s < waiting.four_g_s


@pytest.mark.parametrize("name", ["stories.npz", "stories"])
def test_what_was_recorded_is_read_again(tmp_path: Path, name: str) -> None:
    stories.save(tmp_path / name, [ALONE, TREES])

    alone, trees = stories.load(tmp_path / name)

    assert (trees.name, trees.exchange, trees.levels) == ("trees", "rounds", 4)
    assert np.array_equal(alone.decisions, ALONE.decisions)
    assert np.array_equal(trees.sent, TREES.sent)


def test_stories_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written: No such file"):
        stories.save(tmp_path / "nowhere" / "stories", [ALONE])


def test_a_file_without_decisions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stories.npz").write_bytes(b"nothing")

    with pytest.raises(InvalidInputError, match="holds no recorded decisions"):
        stories.load(tmp_path / "stories.npz")


def test_a_run_goes_on_with_the_times_that_are_missing(tmp_path: Path) -> None:
    path, asked = tmp_path / "times.json", list[str]()

    def measure(name: str, until: float) -> dict[str, float]:
        def timed(part: str) -> float:
            asked.append(part)
            return 1.5

        wanted = [(part, lambda part=part: timed(part)) for part in ("a", "b")]
        return Times(path, until).complete(name, wanted)

    Times(path, time.monotonic() + 60).complete("XL fp32", [("a", lambda: 2.5)])
    with pytest.raises(CapacityError, match="1 of 2 times of XL fp32"):
        measure("XL fp32", until=0.0)
    found = measure("XL fp32", until=time.monotonic() + 60)

    assert asked == ["b"]
    assert found == {"a": 2.5, "b": 1.5}
    assert measure("XL fp32", until=0.0) == found


def test_a_file_without_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text("[1, 2]")

    with pytest.raises(InvalidInputError, match="holds no measured times"):
        Times(tmp_path / "times.json", 0.0)


def test_the_bar_is_of_ratio_and_calls_at_xl(rows: dict[str, bench.RealSize]) -> None:
    ours = replace(rows["waiting"], method="ours", ratio=2.5, calls=0.25)

    assert bench.bar([ours]).endswith(": met")
    assert bench.bar([replace(ours, ratio=2.0)]).endswith(": NOT met")
    assert bench.bar([replace(ours, calls=0.31)]).endswith(": NOT met")
    assert bench.bar([replace(ours, subject="L fp32")]) == ""


@pytest.mark.timeout(240)
def test_a_large_device_drafts_from_a_bundle_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest of sizes: the numbers are of this machine, what they count is not."""
    monkeypatch.setattr(device, "SIZES", (Size("T", 32, 1, 2),))
    monkeypatch.setattr(device, "CODES", 512)

    loop, whole, small = device.bench("T", pictures=1)

    assert loop.subject == "T, draft loop of the agent"
    assert loop.loop_is == 1
    assert min(loop.p50_ms, whole.p50_ms, loop.of_memory) > 0
    # One layer: norms, attention 4·32², gate, up and down 3·32·256, output and radius, the cache.
    least = 4 * (4 * 32**2 + 3 * 32 * 256 + 512 * 32 + 2 * 2 * 256 * 32)
    assert least < loop.megabytes * 1e6 == whole.megabytes * 1e6 < 1.5 * least + 64_000
    assert small.megabytes < whole.megabytes
