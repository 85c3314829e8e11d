"""Seconds a picture of every deployment, by link and by step costs, and who is faster where."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulations.evaluation.catalogue import CLOUD
from simulations.evaluation.clock.link import FIVE_G, PROFILES, Link, sweep
from simulations.evaluation.clock.replay import Usage
from simulations.evaluation.clock.steps import StepCosts
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import Method
from simulations.evaluation.own import is_lossless
from simulations.evaluation.usage import SWEEP_MS, Deployment, crossings, deployments, usage

Pairs = Sequence[tuple[Method, Sample]]
FACTORS = tuple(2.0**power for power in range(9))  # by which a cloud is made dearer


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a picture of one deployment: by set of costs, then by link."""

    name: str
    used: Usage  # on 5G with this machine's costs
    seconds: dict[str, dict[str, float]]
    lossless: bool = False  # whether every token has the cloud's law


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
class BreakEven:
    """How dear a cloud's step must be for one deployment to be faster than another."""

    first: str
    second: str
    step_s: dict[str, float | None]  # of a lone token, by link; None: not even the dearest tried


def timings(drawn: Pairs, costs: Sequence[StepCosts]) -> list[Timing]:
    """Every deployment on every link."""
    links = (*PROFILES, *sweep(SWEEP_MS))
    return [
        Timing(
            where.name,
            usage(where, costs[0], FIVE_G),
            {
                cost.name: {link.name: usage(where, cost, link).seconds for link in links}
                for cost in costs
            },
            where.method.name == CLOUD or is_lossless(where.method),
        )
        for where in deployments(drawn)
    ]


def named_crossings(timed: Sequence[Timing], pairs: Sequence[tuple[str, str]]) -> list[Crossing]:
    """Where the first of each pair overtakes the second, or the other way round, by costs."""
    by_name = {each.name: each for each in timed}
    known = [pair for pair in pairs if by_name.keys() >= set(pair)]
    found = []
    for costs in timed[0].seconds if timed else ():
        for first, second in known:
            a, b = (curve(by_name[name], costs) for name in (first, second))
            ends = [first if a[i] < b[i] else second for i in (0, -1)]
            found.append(Crossing(costs, first, second, tuple(crossings(SWEEP_MS, a, b)), *ends))
    return found


def best_lossless(timed: Sequence[Timing], costs: str, link: str) -> Timing:
    """The fastest deployment whose every token has the cloud's law."""
    return min(
        (each for each in timed if each.lossless), key=lambda each: each.seconds[costs][link]
    )


def curve(timed: Timing, costs: str) -> list[float]:
    """Seconds over the sweep of round-trip times."""
    return [timed.seconds[costs][link.name] for link in sweep(SWEEP_MS)]


def break_even(drawn: Pairs, costs: StepCosts, pairs: Sequence[tuple[str, str]]) -> list[BreakEven]:
    """From what cost of a cloud's step the first of each pair stays ahead, the device as it is.

    All of the cloud's forwards are made dearer by the same factor, up to the last of `FACTORS`;
    between two of them by straight lines over the factor's logarithm.
    """
    where = {each.name: each for each in deployments(drawn)}
    found = []
    for first, second in pairs:
        if first in where and second in where:
            steps = {
                link.name: _overtakes(where[first], where[second], costs, link) for link in PROFILES
            }
            found.append(BreakEven(first, second, steps))
    return found


def _overtakes(first: Deployment, second: Deployment, costs: StepCosts, link: Link) -> float | None:
    ahead = [
        usage(second, costs.times(factor), link).seconds
        / usage(first, costs.times(factor), link).seconds
        for factor in FACTORS
    ]
    behind = [index for index, ratio in enumerate(ahead) if ratio <= 1]
    if not behind:
        return costs.forward(1)
    last = behind[-1]
    if last + 1 == len(FACTORS):
        return None
    power = np.interp(0, np.log(ahead[last : last + 2]), np.log2(FACTORS[last : last + 2]))
    return costs.forward(1) * float(2**power)
