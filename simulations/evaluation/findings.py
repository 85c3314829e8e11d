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
from simulations.evaluation.clock.link import FIVE_G
from simulations.evaluation.clock.replay import Usage
from simulations.evaluation.clock.steps import StepCosts
from simulations.evaluation.family import load_family
from simulations.evaluation.intervals import IntervalFigures
from simulations.evaluation.jobs import Studio
from simulations.evaluation.standard import Judges
from simulations.evaluation.study import Result, Study
from simulations.evaluation.usage import Deployment, usage

JUDGE_PICTURES = 4000  # of the training split, for the caption scorer
INTERVAL_PICTURES = 96


@dataclass(frozen=True, slots=True)
class Line:
    """A method with everything that is known of it."""

    result: Result
    setting: str  # "equal calls", or "own best"
    retrieval: Retrieval
    used: Usage  # on 5G with this machine's costs
    standard: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that the page shows."""

    lines: list[Line]
    real: Retrieval
    intervals: list[IntervalFigures]


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
    unseen, groups = study.assignment.held_out[:count], study.assignment.groups[:count]
    splits = {
        "": np.ones_like(unseen),
        ", emoji of the training": ~unseen,
        ", unseen emoji": unseen,
    }
    return [
        intervals.figures(name + split, each, family.tokens, groups, chosen)
        for name, each in seen.items()
        for split, chosen in splits.items()
        if chosen.any()
    ]


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
    ours = next(line.result for line in whole.lines if line.result.method.name == OURS)
    plots.heat_maps(folder / "scores.png", ours.sample, study.assignment.captions)
