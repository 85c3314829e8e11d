"""The page, the columns and the figures of a small made-up comparison."""

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from PIL import Image

from fleet.decoding.accept import Policy
from fleet.prediction import SCORE_NAMES
from fleet.training.metrics import Comparison
from simulations.evaluation import intervals, plots
from simulations.evaluation.agreement import Retrieval
from simulations.evaluation.catalogue import Setting, Shipped
from simulations.evaluation.catalogue import method as by_name
from simulations.evaluation.clock.replay import Usage
from simulations.evaluation.findings import Findings, Line
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import cloud_only, device_only
from simulations.evaluation.metrics import Coverage, Estimate
from simulations.evaluation.page import calls as calls_told
from simulations.evaluation.page import command, write_page, write_parquet
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.study import Result, Row

RULE = SamplingRule(0.8, 64, 2.0)
RETRIEVAL = Retrieval(0.25, 0.5, 100, 0.3)


def sample(count: int = 2) -> Sample:
    rng = np.random.default_rng(0)
    return Sample(
        tokens=np.zeros((count, 16), np.uint16),
        decisions=rng.integers(0, 4, (count, 16)).astype(np.uint8),
        sent=np.zeros((count, 16), np.uint8),
        score=np.zeros((count, 16), np.float32),
        scores=rng.random((count, 16, len(SCORE_NAMES))).astype(np.float32),
        drafts=np.full((count, 16), -1, np.int32),
        own=np.full((count, 16), -1, np.int32),
        pictures=rng.integers(0, 255, (count, 8, 8, 3)).astype(np.uint8),
        features=np.zeros((count, 4), np.float32),
    )


def line(name: str, distance: float, setting: str = "equal calls") -> Line:
    method = (cloud_only if name == "cloud-only" else device_only)(RULE)
    kernel, coverage = Estimate(distance, 0.5), Coverage(0.5, 0.25)
    row = Row(name, str(RULE), 2, 0.3, 0.1, kernel, None, 10.0, coverage, 0.0, Estimate(0.1, 0.02))
    return Line(Result(method, sample(), row), setting, RETRIEVAL, Usage(1.5, 8, 16, 4, 3, 900, 99))


@pytest.fixture
def findings() -> Findings:
    return Findings(
        lines=[
            line("cloud-only", 1.0),
            line("device-only", 3.0),
            line("device-only", 2.5, "own best"),
        ],
        real=RETRIEVAL,
        intervals=[intervals.IntervalFigures("drawn", 2, *[Estimate(0.5, 0.1)] * 6)],
    )


def test_the_page_says_everything_once(findings: Findings, tmp_path: Path) -> None:
    facts = {
        "command": "python -m simulations evaluate",
        "commit": "abc",
        "family": "f",
        "pictures": 2,
        "others": 2,
        "seeds": 3,
        "calls": "30% of all tokens",
        "searched": "cloud-only T 0.2",
        "gap": Estimate(0.13, 0.02),
    }
    write_page(tmp_path / "results.md", findings, facts)

    text = (tmp_path / "results.md").read_text()
    assert "| commit | `abc` |" in text
    assert "6.5 spreads" in text
    assert text.count("| device-only | T 0.8, k 64, guidance 2 |") == 2
    for name in ("pareto", "reliability", "scores"):
        assert f"(results/{name}.png)" in text


def test_the_networks_that_were_given_have_a_section(findings: Findings, tmp_path: Path) -> None:
    facts = dict.fromkeys(
        ("command", "commit", "family", "pictures", "others", "seeds", "calls", "searched"), "1"
    )
    given = {"fid": 12.5, "clip": 25.25, "hpsv2": None}
    judged = replace(findings, lines=[replace(each, standard=given) for each in findings.lines])
    for name, whole in (("with", judged), ("without", findings)):
        write_page(tmp_path / name, whole, {**facts, "gap": Estimate(0.13, 0.02)})

    text = (tmp_path / "with").read_text()
    assert "| method | setting | n | FID | CLIP score |\n" in text
    assert "| cloud-only | equal calls | 2 | 12.50 | 25.25 |" in text
    assert "FID |" not in (tmp_path / "without").read_text()


def test_the_command_names_no_folder_of_the_machine() -> None:
    arguments = ["evaluate", "--work", "/home/me/w", "--out", "o", "--page", "docs/results.md"]

    assert command(arguments) == (
        "python -m simulations evaluate --work WORK --out OUT --page docs/results.md"
    )


def test_the_columns_come_back_as_numbers(findings: Findings, tmp_path: Path) -> None:
    path = tmp_path / "it's.parquet"

    write_parquet(path, findings)

    rows = duckdb.read_parquet(str(path)).order("setting, method").fetchall()
    names = duckdb.read_parquet(str(path)).columns
    first = dict(zip(names, rows[0], strict=True))
    assert len(rows) == 3
    assert (first["method"], first["kd_effnet"], first["forwards"]) == ("cloud-only", 1.0, 8.0)
    assert first["kd_effnet_unseen"] is None
    assert list(tmp_path.iterdir()) == [path]


def test_a_front_is_what_nothing_beats_in_both() -> None:
    points = [(0.1, 5.0), (0.3, 2.0), (0.3, 3.0), (0.5, 2.5), (1.0, 1.0)]

    assert plots.pareto_front(points) == [(0.1, 5.0), (0.3, 2.0), (1.0, 1.0)]


def test_figures_are_pictures(findings: Findings, tmp_path: Path) -> None:
    points = [plots.Point("a", 1.0, 0.1, (0.1, 2.0)), plots.Point("b", 2.0, 0.1, (0.3, 1.0))]
    plots.pareto(tmp_path / "pareto.png", ["calls", "seconds"], points)
    plots.curves(tmp_path / "curves.png", [0, 1], {"here": {"a": [1.0, 2.0]}}, "seconds")
    plots.heat_maps(tmp_path / "maps.png", findings.lines[0].result.sample, ["a", "b"])
    even = intervals.Reliability(np.array([0.1, 0.9]), np.array([0.1, 0.5]))
    plots.reliability(tmp_path / "b.png", {"drawn": even})

    for path in tmp_path.iterdir():
        with Image.open(path) as picture:
            assert picture.width > 200


def test_interval_figures_are_means_over_positions_and_spread_over_groups() -> None:
    bound = np.array([0.1, 0.2, 0.6, 0.8])
    scores = np.zeros((4, len(SCORE_NAMES)))
    scores[:, SCORE_NAMES.index("rejection_bound")] = bound
    distance = np.array([0.05, 0.3, 0.5, 0.7])
    seen = Comparison(
        distance, distance, np.array([0, 1, 1, 1], bool), np.zeros(4, bool), bound, scores
    )

    groups = np.array([0, 1])
    found = intervals.figures("made up", seen, 2, groups, np.ones(2, bool))
    second = intervals.figures("made up", seen, 2, groups, np.array([False, True]))

    assert second.pictures == 1
    assert second.distance.value == pytest.approx(0.6)
    assert np.isnan(second.distance.spread)

    assert found.within_bound.value == 0.75
    assert found.within_bound.spread == pytest.approx(np.std([0.5, 1.0], ddof=1))
    assert found.rank_correlation.value == pytest.approx(1.0)
    assert found.shared_match.value == 0.25
    assert found.greedy_match.value == 1.0


def test_the_calls_are_told_of_the_methods_whose_score_decides() -> None:
    shipped = Shipped(RULE, Policy("spread", 0.5), 2)
    setting = Setting(shipped, RULE, 0.3, 16)
    row = line("device-only", 1.0).result.row
    results = [
        Result(by_name(name, setting), sample(), replace(row, calls=calls))
        for name, calls in (("random", 0.1), ("entropy", 0.294), ("CIAR", 0.303), ("CoDe", 0.9))
    ]

    told = calls_told(0.3, 240, results)

    assert told.startswith("30% of all tokens, the injected prefix included")
    assert told.endswith("took 29.4% to 30.3%")
