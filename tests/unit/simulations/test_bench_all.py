"""All benches: an entry of the log, before the newest one."""

from pathlib import Path

import pytest

from fleet.errors import InvalidInputError, OutputError
from simulations.bench_all import BENCHES, QUICK, Measured, add_to, entry, joined, measure
from simulations.cli_bench import bench
from simulations.tables import Table


def test_every_name_is_a_bench() -> None:
    assert set(BENCHES) == set(bench.commands) - {"all", "real-size"}  # which needs a recording
    assert set(QUICK) == set(BENCHES)


@pytest.mark.parametrize("name", QUICK)
def test_its_quick_settings_can_be_read(name: str) -> None:
    command = bench.commands[name]

    assert command.make_context(name, list(QUICK[name])).params


def test_an_unknown_bench_is_told_before_any_runs() -> None:
    done: list[Measured] = []

    with pytest.raises(InvalidInputError, match="no bench 'nonsense'"):
        measure(["step", "nonsense"], done.append)

    assert done == []


def test_figures_of_several_runs_have_their_spread() -> None:
    one: list[Table] = [[{"subject": "ours", "ms": 1.0, "count": 3}], [{"ratio": 2.0}]]
    other: list[Table] = [[{"subject": "ours", "ms": 3.0, "count": 3}], [{"ratio": 2.0}]]

    first, second = joined([one, other]).split("\n\n")

    assert [line.split() for line in first.splitlines()] == [
        ["subject", "ms", "count"],
        ["ours", "2", "(1-3)", "3"],
    ]
    assert second.split() == ["ratio", "2"]


def test_an_entry_goes_before_the_newest_one(tmp_path: Path) -> None:
    log = tmp_path / "LOG.md"
    log.write_text("# Log\n\nNewest first.\n\n## 2026-01-01 · Older\n\ntext\n")

    add_to(log, entry([Measured("python -m simulations bench step", "a table", 1.0)]))

    text = log.read_text()
    assert text.startswith("# Log\n\nNewest first.\n")
    assert text.index("All benches") < text.index("Older")
    assert "```\na table\n```" in text
    assert text.count("\n## ") == 2


def test_a_missing_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        add_to(tmp_path / "none.md", "text")
