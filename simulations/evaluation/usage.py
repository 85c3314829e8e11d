"""What the methods take on links: their drawn pictures replayed, by how their tokens travel."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise

import numpy as np

from edge_agent.pace import Pace
from simulations.evaluation.clock.drafting import window
from simulations.evaluation.clock.link import Link
from simulations.evaluation.clock.replay import Story, Usage, alone, rounds, stream, wait
from simulations.evaluation.clock.steps import StepCosts
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import Exchange, Method
from simulations.evaluation.moment import AMENDED, CORRECTED, LOCAL
from simulations.evaluation.rules.rounds import Tree

PICTURES = 60  # replayed of each method
SWEEP_MS = (0.0, 5.0, 10.0, 20.0, 35.0, 50.0, 75.0, 100.0)
_PLACES: dict[Exchange, str] = {
    "wait": "stop and wait",
    "rounds": "drafts over the link",
    "hosted": "drafter in the cloud",
}


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """A method with its pictures, and one way for its tokens to travel."""

    name: str
    method: Method
    sample: Sample


def deployments(drawn: Sequence[tuple[Method, Sample]]) -> list[Deployment]:
    """The ways in which each method could be run, so that none is judged by its worst place."""
    found = []
    for method, sample in drawn:
        ways: tuple[Exchange, ...] = (method.exchange,)
        if method.exchange == "window":
            ways = ("window", "wait")
        elif method.exchange == "rounds":
            ways = ("hosted", "rounds")
        for way in ways:
            label = f"{method.name}, {_PLACES[way]}" if way in _PLACES else method.name
            name = method.name if len(ways) == 1 else label
            found.append(Deployment(name, replace(method, exchange=way), sample))
    return found


def usage(deployment: Deployment, costs: StepCosts, link: Link) -> Usage:
    """The mean over the first pictures, one after the other; forwards and bytes are means too."""
    count, pace = min(PICTURES, len(deployment.sample)), Pace()
    used = [_one(deployment, row, costs, link, pace) for row in range(count)]
    means = np.mean([astuple(each) for each in used], axis=0)
    return Usage(*(float(value) for value in means))


def story(method: Method, sample: Sample, row: int) -> Story:
    """The story of one picture of a sample."""
    decisions = sample.decisions[row]
    beyond = np.arange(len(decisions)) >= method.prefix
    changed = np.isin(decisions, (CORRECTED, AMENDED))
    asked = beyond & ~np.isin(decisions, (LOCAL, AMENDED))
    amended = np.flatnonzero(decisions == AMENDED)
    if len(amended) and not asked[amended[-1] :].any():
        asked[-1] = True  # the hub sees what it amends only in a request
    return Story(method.prefix, asked, changed, sample.sent[row])


def crossings(x: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Where two curves over `x` change places, by straight lines between the points."""
    gaps = np.asarray(first) - np.asarray(second)
    apart = [(at, gap) for at, gap in zip(x, gaps, strict=True) if gap]
    return [
        float(a + (b - a) * low / (low - high))
        for (a, low), (b, high) in pairwise(apart)
        if low * high < 0
    ]


def _one(deployment: Deployment, row: int, costs: StepCosts, link: Link, pace: Pace) -> Usage:
    method = deployment.method
    told = story(method, deployment.sample, row)
    levels = method.rule.levels if isinstance(method.rule, Tree) else 0
    match method.exchange:
        case "none":
            return alone(told, costs)
        case "stream":
            return stream(told.tokens, costs, link)
        case "wait":
            return wait(told, costs, link)
        case "window":
            return window(told, costs, link, pace)
        case "rounds":
            return rounds(told, costs, link, levels)
        case "hosted":
            return _hosted(told, costs, link, levels)


def _hosted(told: Story, costs: StepCosts, link: Link, levels: int) -> Usage:
    """Rounds within the cloud, which streams the tokens as they settle."""
    used, there = rounds(told, costs, None, levels), stream(told.tokens, costs, link)
    used.cloud_seconds = used.seconds
    used.seconds += there.seconds - told.tokens * costs.forward(1)
    used.round_trips, used.bytes_up, used.bytes_down = 1, there.bytes_up, there.bytes_down
    return used
