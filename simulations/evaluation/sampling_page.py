"""Intervals and scores under other sampling rules, as a page of its own; written, never edited."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from simulations.evaluation import page
from simulations.evaluation.catalogue import Setting
from simulations.evaluation.catalogue import method as by_name
from simulations.evaluation.family import load_family
from simulations.evaluation.free_running import Holds, holds, seen
from simulations.evaluation.jobs import Studio
from simulations.evaluation.methods import Method
from simulations.evaluation.metrics import Estimate
from simulations.evaluation.order import Order
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.study import Plan, Study
from simulations.evaluation.table import table

# Beside the shipped rule: each knob alone, then what the paper's models are drawn with.
_OTHERS = (
    SamplingRule(1.0),
    SamplingRule(1.0, 64),
    SamplingRule(1.0, 0, 2.0),
    SamplingRule(1.0, 64, 2.0),
)
_CURES = ("ours+deaf", "ours+capped", "ours+row starts", "ours+amended")
_RATE = 0.25  # of a cure that keeps a share; those here keep ours' threshold
_HEAD = (
    """# Intervals and scores under guidance and top-k

Written by `python -m simulations evaluate --stage sampling`; definitions are in
[evaluation.md](evaluation.md#intervals-under-other-sampling). Everything is judged along the
pictures that the method itself draws, behind the prefix, with the shipped threshold.

"""
    + page.ORIGIN
    + """| pictures | {pictures} a row, the same captions and seeds for all |
| groups | {groups} |

"""
)


def publish_sampling(order: Order, plan: Plan, _: Studio, study: Study) -> None:
    """Draw what is missing, and write the page."""
    assert order.page is not None
    family, groups = load_family(order.work), study.assignment.groups[: order.others]

    def look(method: Method) -> Holds:
        drawn = seen(family, method, study.assignment, order.others, order.work, order.out)
        return holds(method, drawn, groups)

    rules = (plan.shipped.sampling, *_OTHERS)
    ours = [look(replace(plan.shipped.method, sampling=rule)) for rule in rules]
    last = replace(plan.shipped, sampling=rules[-1])
    setting = Setting(last, last.sampling, _RATE, family.tokens)
    cures = [look(by_name(name, setting)) for name in _CURES]
    facts = {**page.origin(order.work), "pictures": order.others, "groups": order.seeds}
    write_sampling(order.page, ours, cures, facts)


def write_sampling(path: Path, ours: list[Holds], cures: list[Holds], facts: Any) -> None:
    """Write the page of what `ours` holds under each rule and what its `cures` change."""
    parts = [
        _HEAD.format(**facts),
        "## Intervals\n\n",
        _intervals(ours),
        "\n## Scores\n\nSpearman's correlation with the TV of the laws that are drawn from.\n\n",
        _scores(ours),
        "\n## What may cure it\n\n",
        _cures([ours[-1], *cures]),
    ]
    path.write_text("".join(parts), encoding="utf-8")


def _intervals(rows: list[Holds]) -> str:
    heads = ["sampling", "calls", "coverage", "TV, guided", "TV ≤ B", "TV, drawn", "drawn TV ≤ B"]
    heads += ["draws differ", "kept so"]
    return table(heads, [[str(each.method.sampling), *_cells(each)] for each in rows])


def _scores(rows: list[Holds]) -> str:
    names = list(rows[0].ranks)
    cells = [[str(r.method.sampling), *(_cell(r.ranks[name]) for name in names)] for r in rows]
    return table(["sampling", *names], cells)


def _cures(rows: list[Holds]) -> str:
    heads = ["method", "sampling", "calls", "coverage", "TV, guided", "TV ≤ B", "TV, drawn"]
    heads += ["drawn TV ≤ B", "draws differ", "kept so"]
    return table(
        heads, [[each.method.name, str(each.method.sampling), *_cells(each)] for each in rows]
    )


def _cells(each: Holds) -> list[str]:
    shares = (each.coverage, each.distance, each.within_bound, each.drawn_distance)
    more = (each.drawn_within_bound, each.differ, each.kept)
    return [f"{each.calls:.1%}", *map(_cell, (*shares, *more))]


def _cell(value: Estimate) -> str:
    return f"{value.value:.3f} ± {value.spread:.3f}"
