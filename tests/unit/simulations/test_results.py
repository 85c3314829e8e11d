"""The folder of a run, and what is refused before anything is written there."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fleet.errors import OutputError
from simulations.cli import main
from simulations.results import claim

ONE = "about = 'x'\ndevices = 1\nseconds = 1\n"


def test_a_new_an_empty_and_an_earlier_folder_are_taken(tmp_path: Path) -> None:
    claim(tmp_path / "new")
    (tmp_path / "new" / "notes.txt").touch()
    claim(tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "events.jsonl").touch()
    claim(tmp_path / "old")
    (tmp_path / "empty").mkdir()
    claim(tmp_path / "empty")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(OutputError, match="holds something that no run wrote"):
        claim(tmp_path)

    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("more", "options", "sentence"),
    [
        (
            "[[faults]]\nkind = 'stall-agents'\nat_s = 0",
            [],
            "'stall-agents' needs the real clock: take it out, or run the scenario with --clock",
        ),
        (
            "[rounds]\nat_s = 0",
            ["--clock", "real", "--processes", "1"],
            "[rounds] needs the virtual",
        ),
        ("[[faults]]\nkind = 'poison-updates'\nat_s = 0", [], "needs rounds: give the table"),
    ],
)
def test_what_a_clock_has_not_is_refused_before_anything_is_written(
    tmp_path: Path, more: str, options: list[str], sentence: str
) -> None:
    file, out = tmp_path / "one.toml", tmp_path / "out"
    file.write_text(ONE + more)

    told = CliRunner().invoke(main, ["run", str(file), "--out", str(out), *options])

    assert told.exit_code == 2
    assert sentence in " ".join(told.output.split())
    assert not out.exists()
