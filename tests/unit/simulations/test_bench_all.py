"""All benches: an entry of the log, before the newest one."""

from pathlib import Path

import pytest

from fleet.errors import InvalidInputError, OutputError
from simulations.bench_all import BENCHES, Measured, add_to, entry, measure
from simulations.cli_bench import bench


def test_every_name_is_a_bench() -> None:
    assert set(BENCHES) <= set(bench.commands)


def test_an_unknown_bench_is_told_before_any_runs() -> None:
    done: list[Measured] = []

    with pytest.raises(InvalidInputError, match="no bench 'nonsense'"):
        measure(["step", "nonsense"], done.append)

    assert done == []


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
