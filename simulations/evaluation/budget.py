"""Thresholds at which a method asks the cloud as often as it is meant to, running freely.

A threshold shifts what is drawn, and what is drawn shifts the scores: so the threshold is sought
along pictures that the method itself draws with the last guess (docs/evaluation.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.accept import START, Policy, asks, follow
from fleet.prediction import SCORE_NAMES
from simulations.evaluation.captions import Assignment
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import Method
from simulations.evaluation.moment import LOCAL
from simulations.evaluation.rules.gates import Gate
from simulations.evaluation.rules.oracle import Oracle

PARTS = (0.25, 1.0, 1.0, 1.0)  # of the captions, drawing after drawing
TOLERANCE = (
    0.02  # of the share asked along pictures of all captions; a step leaves less than a fifth
)


class Drawer(Protocol):
    """Who draws samples; `jobs.Studio` does."""

    def draw(self, plan: Sequence[tuple[Method, int]], assignment: Assignment) -> list[Sample]: ...


def asked_rate(sample: Sample, prefix: int) -> float:
    """Share of the tokens after the prefix that did not stay the device's."""
    return float((sample.decisions[:, prefix:] != LOCAL).mean())


@dataclass(frozen=True, slots=True)
class Trial:
    """A threshold, and the share of the tokens after the prefix that were asked with it."""

    threshold: float
    asked: float


def matched(
    studio: Drawer,
    methods: list[Method],
    first: Sample | None,
    rate: float,
    assignment: Assignment,
    parts: Sequence[float] = PARTS,
) -> list[Method]:
    """The methods with thresholds at which they ask at `rate`, tried on `assignment`'s captions.

    Methods that ask by no score come back as they are; a threshold that moves by itself begins at
    the first guess. `first`: pictures along which that guess is made, drawn by a method that
    looks at all scores; without them, and for an oracle, the guess is the threshold that the
    method has. Whoever asks at `rate` within `TOLERANCE` takes a last step, and is done; what the
    hub changes unasked counts as asked, as in the tables. `parts`: of the captions, the first ones
    for each drawing.
    """
    guessed = {method.name: _guess(method, first, rate) for method in methods}
    tried: dict[str, list[Trial]] = {m.name: [] for m in guessed.values() if is_tuned(m)}
    for part in parts:
        plan = [(guessed[name], round(part * len(assignment.rows))) for name in tried]
        for (method, _), sample in zip(plan, studio.draw(plan, assignment), strict=True):
            asked, trials = asked_rate(sample, method.prefix), tried[method.name]
            if part == 1:
                trials.append(Trial(_threshold(method), asked))
            step = _quantile(method, sample, asked, rate)
            guessed[method.name] = _with(method, next_threshold(trials, step, rate))
            if part == 1 and abs(asked - rate) <= TOLERANCE:
                del tried[method.name]  # the last step is too short to be worth a drawing
    return list(guessed.values())


def is_tuned(method: Method) -> bool:
    """Whether a fixed threshold of a score decides how often the method asks."""
    if not isinstance(method.rule, Gate):
        return isinstance(method.rule, Oracle)
    return method.rule.policy.score != "random" and not method.rule.policy.call_share


def next_threshold(trials: list[Trial], step: float, rate: float) -> float:
    """The threshold to try next: on the straight line between the trials that enclose `rate`.

    `step` where none do: it may go to and fro, since what is asked moves the scores.
    """
    low = max((t for t in trials if t.asked > rate), key=lambda t: t.threshold, default=None)
    high = min((t for t in trials if t.asked < rate), key=lambda t: t.threshold, default=None)
    if low is None or high is None:
        return step
    part = (low.asked - rate) / (low.asked - high.asked)
    return low.threshold + part * (high.threshold - low.threshold)


def _guess(method: Method, first: Sample | None, rate: float) -> Method:
    name = _policy(method).score if isinstance(method.rule, Gate) else None
    if first is None or name not in SCORE_NAMES:
        return method
    values = first.scores[:, method.prefix :, SCORE_NAMES.index(name)]
    return _with(method, threshold_for(values, rate, _policy(method), method.prefix))


def _quantile(method: Method, sample: Sample, asked: float, rate: float) -> float:
    """The threshold that would ask a share `rate`, were the same pictures drawn with it."""
    values = sample.score[:, method.prefix :]
    if isinstance(method.rule, Oracle):
        return float(np.quantile(values, 1 - rate))
    policy = _policy(method)
    unasked = asked - asked_share(policy, values, method.prefix)
    return threshold_for(values, max(0.0, rate - unasked), policy, method.prefix)


def _policy(method: Method) -> Policy:
    assert isinstance(method.rule, Gate)
    return method.rule.policy


def _threshold(method: Method) -> float:
    rule = method.rule
    return rule.threshold if isinstance(rule, Oracle) else _policy(method).threshold


def _with(method: Method, threshold: float) -> Method:
    if isinstance(method.rule, Oracle):
        return replace(method, rule=replace(method.rule, threshold=threshold))
    assert isinstance(method.rule, Gate)
    policy = replace(method.rule.policy, threshold=threshold)
    return replace(method, rule=replace(method.rule, policy=policy))


def threshold_for(
    values: NDArray[np.floating], rate: float, policy: Policy, prefix: int = 0
) -> float:
    """The threshold at which a share `rate` of scores [N, T'] asks, forced questions included.

    With a cap on unverified runs no threshold may bring the share down to `rate`; then it is the
    largest score, and the cap alone asks.
    """
    if not policy.max_run and not policy.row_length:
        return float(np.quantile(values, 1 - rate))
    ranks = np.sort(values[np.isfinite(values)].astype(np.float64))
    low, high = 0, len(ranks) - 1
    while low < high:
        middle = (low + high) // 2
        tried = replace(policy, threshold=float(ranks[middle]), call_share=0.0)
        if asked_share(tried, values, prefix) > rate:
            low = middle + 1
        else:
            high = middle
    return float(ranks[low])


def asked_share(policy: Policy, values: NDArray[np.floating], prefix: int = 0) -> float:
    """Share of the positions of scores [N, T'], which begin after the prefix, that ask."""
    track, asked = START, 0
    for place, column in enumerate(values.T):
        ask = asks(policy, column, prefix + place, track)
        track = follow(policy, track, ask)
        asked += int(ask.sum())
    return asked / values.size
