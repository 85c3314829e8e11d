"""Thresholds at which a method asks the cloud as often as it is meant to, running freely.

A threshold shifts what is drawn, and what is drawn shifts the scores: so the threshold is the
quantile of the scores along pictures that the method itself drew, found by drawing with the last
guess (docs/evaluation.md).
"""

from collections.abc import Sequence
from dataclasses import replace
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

ROUNDS = 2  # of drawing


class Drawer(Protocol):
    """Who draws samples; `jobs.Studio` does."""

    def draw(self, plan: Sequence[tuple[Method, int]], assignment: Assignment) -> list[Sample]: ...


def asked_rate(sample: Sample, prefix: int) -> float:
    """Share of the tokens after the prefix that did not stay the device's."""
    return float((sample.decisions[:, prefix:] != LOCAL).mean())


def matched(
    studio: Drawer,
    methods: list[Method],
    first: Sample,
    rate: float,
    assignment: Assignment,
    rounds: int = ROUNDS,
) -> list[Method]:
    """The methods with thresholds at which they ask at `rate`, tried on `assignment`'s captions.

    Methods that ask by no score come back as they are; a threshold that moves by itself begins at
    the first guess. `first`: pictures along which that guess is made, drawn by a method that
    looks at all scores. An oracle's guess is to keep nothing that differs.
    """
    guessed = [_guess(method, first, rate) for method in methods]
    for _ in range(rounds):
        chosen = [method for method in guessed if _is_tuned(method)]
        plan = [(method, len(assignment.rows)) for method in chosen]
        drawn = dict(zip([m.name for m in chosen], studio.draw(plan, assignment), strict=True))
        guessed = [
            _with_quantile(method, drawn[method.name].score[:, method.prefix :], rate)
            if method.name in drawn
            else method
            for method in guessed
        ]
    return guessed


def _is_tuned(method: Method) -> bool:
    if isinstance(method.rule, Oracle):
        return True
    policy = method.rule.policy if isinstance(method.rule, Gate) else None
    return policy is not None and policy.score != "random" and not policy.call_share


def _guess(method: Method, first: Sample, rate: float) -> Method:
    name = method.rule.policy.score if isinstance(method.rule, Gate) else None
    if name not in SCORE_NAMES:
        return method
    column = SCORE_NAMES.index(name)
    return _with_quantile(method, first.scores[:, method.prefix :, column], rate)


def _with_quantile(method: Method, values: NDArray[np.floating], rate: float) -> Method:
    """The method with the threshold at which a share `rate` of scores [N, T'] asks."""
    gate = method.rule
    if isinstance(gate, Oracle):
        return replace(method, rule=replace(gate, threshold=float(np.quantile(values, 1 - rate))))
    if not isinstance(gate, Gate):
        return method
    threshold = threshold_for(values, rate, gate.policy, method.prefix)
    policy = replace(gate.policy, threshold=threshold)
    return replace(method, rule=replace(gate, policy=policy))


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
