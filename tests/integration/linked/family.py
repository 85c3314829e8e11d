"""A tiny family of a LlamaGen cloud and its drafter, made by the commands that people use."""

from pathlib import Path

from click.testing import CliRunner

from fleet.training.cli import main

CAPTIONS_FILE = "captions.txt"


def make_bundle(
    work: Path, model: Path, captions: list[str], *more: str, adapted: bool = False
) -> None:
    """Draw, train for a few seconds, and export a bundle into the model's folder."""
    (work / CAPTIONS_FILE).write_text("\n".join(captions) + "\n")
    common = ["--work", str(work), "--model", str(model)]
    rule = ["--guidance", "2", "--top-k", "0"]
    _run("draw", *common, "--captions", str(work / CAPTIONS_FILE), "--batch", "10", *rule)
    _run("train", *common, "--minutes", "0.12", "--batch", "4", "--positions", "8")
    if adapted:
        _run("adapt", *common, "--minutes", "0.05", "--batch", "4", *rule)
    _run("export", *common, "--key", str(work / "key.pem"), "--pictures", "2", *rule, *more)


def _run(verb: str, *arguments: str) -> None:
    command = ["--threads", "1", "drafter", verb, *arguments]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
