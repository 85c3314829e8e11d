"""`cloud_hub rounds` and `rollout` at a terminal: what is wrong is told, and nothing is left."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloud_hub.cli import main
from cloud_hub.cli_rounds import Board


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's database, and a broker that nobody runs."""
    monkeypatch.setenv("CLOUD_HUB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CLOUD_HUB_BROKER__HOST", "127.0.0.1")
    monkeypatch.setenv("CLOUD_HUB_BROKER__PORT", "1")
    assert said("migrate").exit_code == 0


def said(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("rounds start rounds=abc", "rounds is 'abc': give it a whole number"),
        ("rounds start rate=fast", "rate is 'fast': give it a number"),
        ("rounds start rate=nan", "rate is nan: it must be at least 0"),
        ("rounds start rank=-1", "rank is -1: it must be at least 0"),
        ("rounds start steps=0", "steps is 0: it must be at least 1"),
        ("rounds start batch=0", "batch is 0: it must be above 0"),
        ("rounds start quorum=2", "quorum is 2.0: a share between 0 and 1"),
        ("rounds start strategy=best", "take one of trimmed-mean, fedavg"),
        ("rounds start loss=x", "take one of inter-dro, distillation"),
        ("rounds start noise=1", "noise is counted for strategy=fedavg only"),
        ("rounds start least_nodes=5 most_nodes=2", "least_nodes is 5, above most_nodes, 2"),
        ("rounds start steps", "'steps' is no KEY=VALUE"),
        ("rounds start round=3", "a run of rounds has no 'round'"),
        ("rounds resume nope", "there is no run 'nope'"),
        ("rounds stop nope", "there is no run 'nope'"),
        ("rounds show nope", "there is no run 'nope'"),
        ("rounds publish nope --key k", "there is no run 'nope'"),
        ("rounds schedule add Nightly rounds=2", "'Nightly' is no name"),
        ("rounds schedule add nightly --at daily", "'daily' is no crontab line"),
        ("rounds schedule add nightly --on drift --limit -1", "not in the range"),
        ("rounds schedule remove nightly", "there is no schedule 'nightly'"),
        ("rollout start abc", "where do devices fetch it?"),
        ("rollout start abc --source ftp://hub", "no http or https URL"),
        ("rollout show nope", "there is no rollout 'nope'"),
        ("rollout stop nope", "there is no rollout 'nope'"),
        ("rollout resume nope", "there is no rollout 'nope'"),
    ],
)
def test_a_wrong_input_is_told_in_a_sentence(line: str, sentence: str) -> None:
    result = said(line)

    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("hub")
def test_without_a_broker_no_run_is_begun() -> None:
    begun, listed = said("rounds start rounds=1"), said("rounds list")

    assert begun.exit_code == 3
    assert "no broker at 127.0.0.1:1" in begun.output
    assert "there was no run yet" in listed.output


@pytest.mark.usefixtures("hub")
def test_lists_without_rows_say_how_to_begin() -> None:
    assert "`cloud_hub rollout start VERSION` begins one" in said("rollout list").output
    assert "`cloud_hub rounds publish` has made no version yet" in said("models list").output
    assert "`cloud_hub rounds schedule add` makes one" in said("rounds schedule list").output
    assert said("rounds schedule add nightly").exit_code == 0
    assert said("rounds schedule remove nightly").output == "nightly is removed\n"


@pytest.mark.parametrize("is_live", [False, True])
def test_progress_is_one_line_a_phase(
    is_live: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_live)
    board = Board()

    for subject, line in (("1 query", "a"), ("1 query", "b"), ("1 train", "c"), ("1 train", "c")):
        board.show(subject, line)
    board.end()

    shown = capsys.readouterr().out
    assert shown == ("a\r\x1b[2Kb\nc\n" if is_live else "a\nc\n")
