"""Versions in a list: those of rounds with what they gained, and those that devices came with."""

from datetime import UTC, datetime

from cloud_hub.store.catalog import Version
from cloud_hub.versions import fields, lines

FIGURES = {"loss_before": 3.5968, "loss_after": 3.5863}
MADE = Version(
    "1" * 16,
    "device",
    "emoji-64",
    "0" * 16,
    "2026-12-02-57b4c1",
    datetime(2026, 12, 2, 1, 30, tzinfo=UTC),
    {"figures": FIGURES, "nodes": 3},
)


def test_a_version_has_its_parent_its_run_its_devices_and_its_gain() -> None:
    head, made, came = lines([MADE], {"1" * 16: 2, "0" * 16: 5})

    assert head.split() == ["version", "kind", "parent", "run", "made", "devices", "loss"]
    run, moment = "2026-12-02-57b4c1", ["2026-12-02", "01:30"]
    gain = ["3.5968", "->", "3.5863", "on", "3", "nodes"]
    assert made.split() == ["1" * 16, "device", "0" * 16, run, *moment, "2", *gain]
    assert came.split() == ["0" * 16, "device", "-", "-", "-", "5", "not", "from", "rounds"]


def test_programs_get_all_facts_and_who_runs_them() -> None:
    made, came = fields([MADE], {"0" * 16: 5})

    assert made["facts"]["figures"] == FIGURES
    assert (made["devices"], made["made_at"]) == (0, "2026-12-02T01:30:00+00:00")
    assert came == {"version": "0" * 16, "kind": "device", "devices": 5}


def test_a_version_without_figures_has_none_in_the_list() -> None:
    bare = Version("2" * 16, "device", "f", "", "", MADE.made_at, {})

    assert list(lines([bare], {}))[1].split()[-2:] == ["0", "-"]
