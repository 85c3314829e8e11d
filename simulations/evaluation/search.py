"""A coarse search for the sampling rule at which a model's pictures are nearest to real ones."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError
from simulations.evaluation.captions import Assignment
from simulations.evaluation.jobs import Studio
from simulations.evaluation.methods import MAKERS, Method
from simulations.evaluation.metrics import Standard, squared_discrepancy
from simulations.evaluation.sampling_rule import SamplingRule

START = SamplingRule(temperature=0.8)
# One knob after the other, each with the best of the ones before.
LADDER: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("guidance", (1.0, 1.5, 2.0, 3.0)),
    ("temperature", (0.6, 0.4, 0.2, 1.0)),
    ("top_k", (64,)),
)
# Tried one after the other while the lowest so far is the best: no best lies at an edge unseen.
LOWER: dict[str, tuple[float, ...]] = {"temperature": (0.1, 0.05)}


def search(
    studio: Studio, which: str, assignment: Assignment, real: NDArray[np.float32]
) -> list[tuple[SamplingRule, float]]:
    """Rules tried, with their kernel distance from the real features [N, 1280]; best first."""
    standard = Standard.of(real)
    reference = standard.apply(real)
    found: dict[SamplingRule, float] = {}

    def try_all(rules: Sequence[SamplingRule]) -> SamplingRule:
        new = [rule for rule in dict.fromkeys(rules) if rule not in found]
        plan = [(_named(which, rule), len(assignment.rows)) for rule in new]
        for rule, sample in zip(new, studio.draw(plan, assignment), strict=True):
            found[rule] = squared_discrepancy(reference, standard.apply(sample.features))
        return min(found, key=lambda rule: found[rule])

    best = START
    for knob, values in LADDER:
        best = try_all([_with(best, knob, value) for value in values])
        for value in LOWER.get(knob, ()):
            if getattr(best, knob) > min(getattr(rule, knob) for rule in found):
                break
            best = try_all([_with(best, knob, value)])
    return sorted(found.items(), key=lambda item: item[1])


def save_search(path: Path, which: str, table: list[tuple[SamplingRule, float]]) -> None:
    """Write the rules tried for one model, best first, beside those of the other."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    content[which] = [{**asdict(rule), "kernel_distance": distance} for rule, distance in table]
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def best_rules(path: Path) -> dict[str, SamplingRule]:
    """The best rule of each model in a file that `save_search` wrote.

    Raises:
        InvalidInputError: A model was not searched yet.
    """
    return {which: rules[0] for which, rules in ranked_rules(path).items()}


def ranked_rules(path: Path) -> dict[str, list[SamplingRule]]:
    """All rules tried for each model in a file that `save_search` wrote, best first.

    Raises:
        InvalidInputError: A model was not searched yet.
    """
    tables = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if missing := MAKERS.keys() - tables.keys():
        raise InvalidInputError(
            f"{path} holds no rule for {' and '.join(sorted(missing))}: run the search stage first"
        )
    return {which: [_rule(row) for row in table] for which, table in tables.items()}


def told(path: Path) -> str:
    """The best rule of each model in a file that `save_search` wrote, and what was tried.

    Raises:
        InvalidInputError: A model was not searched yet.
    """
    return "; ".join(
        f"{which}-only {rules[0]} (temperatures {_values(rules, 'temperature')},"
        f" guidance {_values(rules, 'guidance')})"
        for which, rules in ranked_rules(path).items()
    )


def _values(rules: list[SamplingRule], knob: str) -> str:
    return ", ".join(f"{value:g}" for value in sorted({getattr(rule, knob) for rule in rules}))


def _with(rule: SamplingRule, knob: str, value: float) -> SamplingRule:
    values = {**asdict(rule), knob: value}
    return SamplingRule(values["temperature"], int(values["top_k"]), values["guidance"])


def _named(which: str, rule: SamplingRule) -> Method:
    return replace(MAKERS[which](rule), name=f"{which} {rule}")


def _rule(row: dict[str, float]) -> SamplingRule:
    return SamplingRule(row["temperature"], int(row["top_k"]), row["guidance"])
