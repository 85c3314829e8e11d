"""The whole comparison: own best settings, captions, intervals, links, figures and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from fleet.models.image_tokenizer import to_unit
from simulations.evaluation import intervals, plots
from simulations.evaluation.agreement import Judge, Retrieval
from simulations.evaluation.agreement import train as train_judge
from simulations.evaluation.catalogue import OURS
from simulations.evaluation.clock.link import FIVE_G, PROFILES, Link, sweep
from simulations.evaluation.clock.replay import Usage
from simulations.evaluation.clock.steps import StepCosts
from simulations.evaluation.family import load_family
from simulations.evaluation.intervals import IntervalFigures
from simulations.evaluation.jobs import Studio
from simulations.evaluation.standard import Judges
from simulations.evaluation.study import CEILING, Result, Study
from simulations.evaluation.usage import SWEEP_MS, Deployment, crossings, deployments, usage

JUDGE_PICTURES = 4000  # of the training split, for the caption scorer
INTERVAL_PICTURES = 96
_SWEPT = ("cloud-only", "ours", "CIAR", "CoDe", "speculative", "EAGLE-2", "LANTERN 0.4")


@dataclass(frozen=True, slots=True)
class Line:
    """A method with everything that is known of it."""

    result: Result
    setting: str  # "equal calls", or "own best"
    retrieval: Retrieval
    used: Usage  # on 5G with this machine's costs
    standard: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a picture of one deployment: by set of costs, then by link."""

    name: str
    used: Usage  # on 5G with this machine's costs
    seconds: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where two deployments change places as the round trip grows."""

    costs: str
    first: str
    second: str
    at_ms: tuple[float, ...]
    faster_at_0: str
    faster_at_100: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that the page shows."""

    lines: list[Line]
    real: Retrieval
    intervals: list[IntervalFigures]
    timings: list[Timing]
    crossings: list[Crossing]
    costs: StepCosts


def judge(studio: Studio, study: Study, work: Path, out: Path) -> Judge:
    """The caption scorer, trained once a folder."""
    family = load_family(work)
    rows = study.pictures.rows("train")
    weight = study.pictures.weight[rows].astype(np.float64)
    count = min(JUDGE_PICTURES, len(rows))
    chosen = np.sort(
        np.random.default_rng(0).choice(rows, count, replace=False, p=weight / weight.sum())
    )
    features = studio.features(study.pictures.pixels[chosen], f"train-{count}")
    captions = [study.pictures.captions[row] for row in chosen]
    return train_judge(out / "caption_scorer.pt", family.vocabulary, features, captions)


def on_real_pictures(studio: Studio, study: Study, scorer: Judge) -> Retrieval:
    """How well the scorer finds the captions of real test pictures."""
    rows = study.pictures.rows("test")
    features = studio.features(study.pictures.pixels[rows], f"test-{len(rows)}")
    return scorer.retrieval(features, [study.pictures.captions[row] for row in rows])


def lines(
    results: Sequence[Result], setting: str, scorer: Judge, captions: list[str], costs: StepCosts
) -> list[Line]:
    """Results with their captions judged and their tokens counted."""
    return [
        Line(
            result,
            setting,
            scorer.retrieval(result.sample.features, captions[: len(result.sample)]),
            usage(Deployment(result.method.name, result.method, result.sample), costs, FIVE_G),
        )
        for result in results
    ]


def by_standard(lines: Sequence[Line], judges: Judges | None, study: Study) -> list[Line]:
    """The lines with the figures of the networks that were given."""
    if judges is None:
        return list(lines)
    captions, real = study.assignment.captions, study.real_pixels
    judged = []
    for line in lines:
        made = line.result.sample.pictures
        found = judges.figures(real[: len(made)], made, captions[: len(made)])
        judged.append(replace(line, standard=found))
    return judged


def look_at_intervals(
    work: Path, study: Study, ours: Result, folder: Path
) -> list[IntervalFigures]:
    """The pair on real validation pictures and on what ours drew; draws the diagram of B."""
    family = load_family(work)
    count = min(INTERVAL_PICTURES, len(ours.sample))
    captions = study.assignment.captions[:count]
    rows = study.assignment.rows[:count]
    with torch.inference_mode():
        real = family.tokenizer.encode(to_unit(torch.from_numpy(study.pictures.pixels[rows])))
    histories = {"real pictures": real.numpy(), "drawn by ours": ours.sample.tokens[:count]}
    seen = {name: intervals.look(family, captions, each) for name, each in histories.items()}
    diagrams = {name: intervals.reliability(each) for name, each in seen.items()}
    plots.reliability(folder / "reliability.png", diagrams)
    groups = study.assignment.groups[:count]
    return [intervals.figures(name, each, family.tokens, groups) for name, each in seen.items()]


def timings(drawn: Sequence[Result], costs: Sequence[StepCosts]) -> list[Timing]:
    """Every deployment on every link."""
    pairs = [(each.method, each.sample) for each in drawn if each.method.name != CEILING]
    return [
        Timing(
            where.name,
            usage(where, costs[0], FIVE_G),
            {
                cost.name: {link.name: usage(where, cost, link).seconds for link in _links()}
                for cost in costs
            },
        )
        for where in deployments(pairs)
    ]


def named_crossings(timed: Sequence[Timing], pairs: Sequence[tuple[str, str]]) -> list[Crossing]:
    """Where the first of each pair overtakes the second, or the other way round."""
    by_name = {each.name: each for each in timed}
    found = []
    for first, second in pairs:
        if first not in by_name or second not in by_name:
            continue
        for costs in by_name[first].seconds:
            a, b = (curve(by_name[name], costs) for name in (first, second))
            ends = [first if a[i] < b[i] else second for i in (0, -1)]
            found.append(Crossing(costs, first, second, tuple(crossings(SWEEP_MS, a, b)), *ends))
    return found


def curve(timed: Timing, costs: str) -> list[float]:
    """Seconds over the sweep of round-trip times."""
    return [timed.seconds[costs][link.name] for link in sweep(SWEEP_MS)]


def _links() -> tuple[Link, ...]:
    return (*PROFILES, *sweep(SWEEP_MS))


def draw_figures(folder: Path, whole: Findings, study: Study) -> None:
    """All plots but the diagram of B."""
    folder.mkdir(parents=True, exist_ok=True)
    length = whole.lines[0].result.sample.tokens.shape[1]
    points = [
        plots.Point(
            line.result.method.name,
            line.result.row.kernel.value,
            line.result.row.kernel.spread,
            (
                line.result.row.calls or 0.0,
                line.used.forwards / length,
                (line.used.bytes_up + line.used.bytes_down) / 1e3,
                line.used.seconds,
            ),
        )
        for line in whole.lines
        if line.setting == "equal calls"
    ]
    axes = ("cloud calls a token", "cloud forwards a token", "kB a picture", "seconds, 5G")
    plots.pareto(folder / "pareto.png", axes, points)
    swept = [each for each in whole.timings if each.name.split(", ")[0] in _SWEPT]
    names = list(swept[0].seconds) if swept else []
    panels = {name: {each.name: curve(each, name) for each in swept} for name in names}
    plots.curves(folder / "latency.png", SWEEP_MS, panels, "seconds a picture")
    ours = next(line.result for line in whole.lines if line.result.method.name == OURS)
    plots.heat_maps(folder / "scores.png", ours.sample, study.assignment.captions)
