"""Whether an aggregate is better than what the round began with: kept, or discarded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MOST_STRETCH = 2.0  # how far the few samples that nodes hold out may move all radii
_TRIM = 0.2  # of nodes at either end, when their verdicts are averaged
_WORST = 0.1  # the share of nodes that "the worst" means


@dataclass(frozen=True, slots=True)
class Score:
    """A node's held-out samples under one set of weights."""

    loss: float
    tv: float
    stretch: float = 1.0  # of the radii, with which they would cover what they should


@dataclass(frozen=True, slots=True)
class Verdict:
    """What validation says, and what it saw."""

    is_kept: bool
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


def judge(
    before: Mapping[int, Score],  # by node, on what the round began with
    after: Mapping[int, Score],  # by node, on the aggregate
    holdout: tuple[float, float] | None,  # loss before and after on the hub's own samples
    least_gain: float,
) -> Verdict:
    """Whether the aggregate is kept: the loss falls on most nodes, and on the hub's samples.

    Nodes are compared with themselves, and the mean of their changes is trimmed, so that one
    node's word neither saves nor sinks an aggregate.
    """
    both = sorted(before.keys() & after.keys())
    figures: dict[str, float] = {"nodes": float(len(both))}
    if not both and holdout is None:
        return Verdict(False, "nobody validated the aggregate", figures)
    reasons = []
    if both:
        losses = _pair(before, after, both, "loss")
        gain = -trimmed_mean(losses[1] - losses[0], _TRIM)
        tvs = _pair(before, after, both, "tv")
        figures |= {
            "loss_before": float(losses[0].mean()),
            "loss_after": float(losses[1].mean()),
            "gain": gain,
            "tv_before": float(tvs[0].mean()),
            "tv_after": float(tvs[1].mean()),
            "worst_loss_before": _worst(losses[0]),
            "worst_loss_after": _worst(losses[1]),
            "stretch": _agreed([after[node].stretch for node in both]),
        }
        reasons += _fall(gain, least_gain, "on the nodes' held-out samples")
    if holdout is not None:
        figures |= {"holdout_before": holdout[0], "holdout_after": holdout[1]}
        reasons += _fall(holdout[0] - holdout[1], least_gain, "on the hub's held-out samples")
    return Verdict(not reasons, "; ".join(reasons), figures)


class Judged(Protocol):
    """A round that ended."""

    @property
    def outcome(self) -> str:
        """Whether it was kept."""
        ...

    @property
    def figures(self) -> Mapping[str, float]:
        """What validation saw."""
        ...


def last_stretch(rounds: Iterable[Judged]) -> float:
    """The factor that belongs on the radii of a run's result: what its last kept round found."""
    kept = [each for each in rounds if each.outcome == "kept"]
    return kept[-1].figures.get("stretch", 1.0) if kept else 1.0  # older runs did not ask


def trimmed_mean(values: NDArray[np.float64], trim: float) -> float:
    """The mean of values [n] without the share `trim` at either end."""
    cut = int(trim * len(values))
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _agreed(stretches: list[float]) -> float:
    """The median, so that no node's word moves it far."""
    return min(max(float(np.median(stretches)), 1 / MOST_STRETCH), MOST_STRETCH)


def _fall(gain: float, least: float, where: str) -> list[str]:
    return [] if gain > least else [f"the loss changed by {-gain:+.4f} {where}"]


def _pair(
    before: Mapping[int, Score], after: Mapping[int, Score], nodes: list[int], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first = np.array([getattr(before[node], name) for node in nodes], np.float64)
    return first, np.array([getattr(after[node], name) for node in nodes], np.float64)


def _worst(losses: NDArray[np.float64]) -> float:
    count = max(int(np.ceil(_WORST * len(losses))), 1)
    return float(np.sort(losses)[-count:].mean())
