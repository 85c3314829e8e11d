"""The whole evaluation of a tiny exported family, through the command line, twice."""

import json
from pathlib import Path

import duckdb
import numpy as np
import pytest
from click.testing import CliRunner

from fleet.models.signing import generate_key
from fleet.training.export_bundle import Release, export_family
from simulations.cli import main
from tests.unit.models.tiny_family import GRID, write_work

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

# One of each rule, coupling and exchange; every name is made in unit tests.
ASKING = (
    "random",
    "CIAR",
    "U-HLM",
    "CoDe",
    "ours+residual",
    "ours+amended",
    "ours+deaf",
    "entropy",
)
KINDS = (*ASKING, "speculative", "EAGLE-2", "LANTERN++")
NAMES = ("cloud-only", "device-only", "ours", *KINDS)

STYLES, THINGS = ("google", "twitter", "fluent"), ("red heart", "cat", "face", "eyes", "a cat")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training folder with an exported family in it, and 60 made-up pictures."""
    folder = tmp_path_factory.mktemp("work")
    write_work(folder)
    rng, side = np.random.default_rng(0), 2 * GRID
    count = 60
    np.savez(
        folder / "pictures.npz",
        pixels=rng.integers(0, 256, (count, side, side, 3), np.uint8),
        split=np.array([0, 0, 0, 1, 2] * (count // 5), np.uint8),
        weight=np.ones(count, np.float32),
    )
    captions = [f"{STYLES[i % 3]}: {THINGS[i % 5]}" for i in range(count)]
    (folder / "captions.json").write_text(json.dumps(captions))
    generate_key(folder / "signing.key", folder / "signing.pub")
    release = Release("tiny", 2.0, "spread")
    export_family(folder, folder / "models", folder / "signing.key", release)
    return folder


def evaluate(work: Path, *more: str) -> str:
    order = ["evaluate", "--work", str(work), "--models", str(work / "models")]
    order += ["--out", str(work / "out"), "--pictures", "12", "--others", "8", "--searched", "6"]
    done = CliRunner().invoke(main, [*order, "--processes", "1", "--seeds", "2", *more])
    assert done.exit_code == 0, done.output
    return done.output


def test_everything_is_drawn_measured_and_written_and_a_second_run_draws_nothing(
    work: Path,
) -> None:
    page = work / "results.md"

    evaluate(work, "--methods", ",".join(KINDS), "--budget", "0.4", "--page", str(page))

    text = page.read_text()
    for name in NAMES:
        assert f"| {name} | T 0." in text or f"| {name} | T 1" in text, name
    for figure in ("pareto", "reliability", "scores"):
        assert (work / "results" / f"{figure}.png").exists()
    columns = duckdb.read_parquet(str(work / "out" / "evaluation.parquet"))
    settings = dict(columns.aggregate("setting, count(*)").fetchall())
    assert settings["equal calls"] == len(NAMES) + 1  # the ceiling at the shipped sampling
    assert settings["own best"] == len(NAMES)
    rows = json.loads((work / "out" / "evaluation.json").read_text())["rows"]
    calls = {row["name"]: row["calls"] for row in rows}
    assert calls["random"] == pytest.approx(0.4, abs=0.12)
    assert calls["speculative"] == 1

    chunks = {path: path.stat().st_mtime_ns for path in (work / "out").rglob("*.npz")}
    evaluate(work, "--methods", ",".join(KINDS), "--budget", "0.4", "--page", str(page), "--no-own")
    again = {path: path.stat().st_mtime_ns for path in (work / "out").rglob("*.npz")}
    assert again == chunks


def test_stages_write_pages_of_their_own(work: Path) -> None:
    for which in ("device", "cloud"):
        evaluate(work, "--stage", f"search-{which}")
    why, own, sampling = work / "why.md", work / "own.md", work / "sampling.md"
    latency = work / "latency.md"

    evaluate(work, "--stage", "why", "--page", str(why))
    evaluate(work, "--stage", "own", "--page", str(own), "--methods", "entropy,EAGLE-2")

    evaluate(work, "--stage", "sampling", "--page", str(sampling))
    evaluate(work, "--stage", "clock")
    evaluate(work, "--stage", "latency", "--page", str(latency), "--methods", "entropy,EAGLE-2")

    costs = json.loads((work / "out" / "steps.json").read_text())
    assert f"| ms | {costs['device'] * 1e3:.2f} |" in latency.read_text()
    assert "| EAGLE-2, drafts over the link |" in latency.read_text()
    assert (work / "latency" / "latency.png").exists()

    assert "| ours+deaf | T 1, k 64, guidance 2 |" in sampling.read_text()
    assert "| oracle-match | all that differ |" in why.read_text()
    assert (work / "why" / "budgets.png").exists()
    for name in ("cloud-only", "device-only", "ours", "entropy", "EAGLE-2"):
        assert f"| {name} | T " in own.read_text()


def test_a_stage_that_is_a_page_wants_to_know_where(work: Path) -> None:
    order = ["evaluate", "--work", str(work), "--out", str(work / "o"), "--stage", "why"]

    done = CliRunner().invoke(main, order)

    assert done.exit_code == 2
    assert "the stage why is a page: give --page too" in done.output


def test_an_unknown_method_is_refused_with_the_list(work: Path) -> None:
    order = ["evaluate", "--work", str(work), "--out", str(work / "o"), "--methods", "eagle"]

    done = CliRunner().invoke(main, order)

    assert done.exit_code == 2
    assert "there is no method 'eagle': take of cloud-only" in done.output
