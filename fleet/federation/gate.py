"""The gate before aggregation: which replies of a round count, for how much, and why not.

Pure arithmetic on arrays by name. A node that is let in changes the aggregate by a bounded
amount, whatever it says; one that is kept out is named with a sentence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

METRICS = frozenset(
    {"num-examples", "loss-before", "loss-error", "loss-after", "tv-before", "tv-after"}
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a round lets in.

    `clip` and `refuse` are multiples of the median norm of the round's updates: beyond the first
    an update is shortened, beyond the second its node is kept out. `opposed` is the cosine with
    the median update below which an update is taken for one that works against the others.
    """

    clip: float = 3.0
    refuse: float = 10.0
    opposed: float = -0.2
    most_examples: int = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What a node sent: its arrays and what it says of itself."""

    node: int
    arrays: Arrays
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """A reply that counts, as it counts; `note` says what was cut, if anything."""

    node: int
    arrays: Arrays
    examples: int
    loss_before: float
    loss_error: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A node that does not count in this round, and why."""

    node: int
    reason: str


def examine(
    start: Arrays,  # what the round's nodes began with
    replies: Sequence[Reply],
    announced: Mapping[int, int],  # samples by node, as they said before the round
    limits: Limits,
) -> tuple[list[Admitted], list[Refused]]:
    """The replies that count, by node, and those that do not."""
    refused = [Refused(each.node, why) for each in replies if (why := _fault(start, each))]
    out = {each.node for each in refused}
    sound = sorted((each for each in replies if each.node not in out), key=lambda each: each.node)
    updates = {each.node: _flat(start, each.arrays) for each in sound}
    refused += _outliers(updates, limits)
    out |= {each.node for each in refused}
    norms = [_norm(update) for node, update in updates.items() if node not in out]
    cap = limits.clip * float(np.median(norms)) if norms else 0.0
    return [
        _admit(start, each, _norm(updates[each.node]), cap, announced.get(each.node), limits)
        for each in sound
        if each.node not in out
    ], refused


def _fault(start: Arrays, reply: Reply) -> str:
    """What is wrong with a reply by itself."""
    if reply.arrays.keys() != start.keys():
        return f"arrays {sorted(reply.arrays)} instead of {sorted(start)}"
    for name, wanted in start.items():
        found = reply.arrays[name]
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            return f"{name} is {found.dtype} {found.shape} instead of {wanted.dtype} {wanted.shape}"
        if not np.isfinite(found).all():
            return f"{name} holds {int((~np.isfinite(found)).sum())} numbers that are not finite"
    return _bad_metrics(reply.metrics)


def _bad_metrics(metrics: Mapping[str, Any]) -> str:
    if metrics.keys() != METRICS:
        return f"metrics {sorted(metrics)} instead of {sorted(METRICS)}"
    for name, value in metrics.items():
        if isinstance(value, list) or not np.isfinite(value):
            return f"{name} is {value}"
    if metrics["num-examples"] < 1:
        return f"num-examples is {metrics['num-examples']}"
    return ""


def _outliers(updates: Mapping[int, NDArray[np.float64]], limits: Limits) -> list[Refused]:
    """Nodes whose update is far longer than the others', or points against them."""
    if len(updates) < 3:  # two cannot say which of them is odd
        return []
    norms = {node: _norm(update) for node, update in updates.items()}
    middle = float(np.median(list(norms.values())))
    refused = [
        Refused(node, f"an update of norm {norm:.3g}, where the median is {middle:.3g}")
        for node, norm in norms.items()
        if norm > limits.refuse * middle
    ]
    out = {each.node for each in refused}
    rest = {node: update for node, update in updates.items() if node not in out}
    direction = np.median(np.stack(list(rest.values())), axis=0)
    length = _norm(direction)
    for node, update in rest.items():
        size = norms[node] * length
        cosine = float(update @ direction) / size if size else 0.0
        if cosine < limits.opposed:
            refused.append(
                Refused(
                    node, f"an update against the others: cosine {cosine:.2f} with their median"
                )
            )
    return refused


def _admit(
    start: Arrays,
    reply: Reply,
    norm: float,
    cap: float,
    announced: int | None,
    limits: Limits,
) -> Admitted:
    claimed = int(min(reply.metrics["num-examples"], 1 << 62))
    most = limits.most_examples if announced is None else min(announced, limits.most_examples)
    loss, error = (max(float(reply.metrics[n]), 0.0) for n in ("loss-before", "loss-error"))
    admitted = Admitted(reply.node, reply.arrays, min(claimed, most), loss, error)
    notes = []
    if claimed > most:
        notes.append(f"claims {claimed} examples, counted as {most}")
    if norm > cap > 0:
        notes.append(f"norm {norm:.3g} cut to {cap:.3g}")
        admitted = replace(admitted, arrays=_shortened(start, reply.arrays, cap / norm))
    return replace(admitted, note="; ".join(notes))


def _shortened(start: Arrays, arrays: Arrays, share: float) -> dict[str, NDArray[Any]]:
    return {
        name: (begin + (arrays[name].astype(np.float64) - begin) * share).astype(begin.dtype)
        for name, begin in start.items()
    }


def _flat(start: Arrays, arrays: Arrays) -> NDArray[np.float64]:
    """The update [n]: what a node added to what it began with."""
    return np.concatenate(
        [(arrays[name].astype(np.float64) - begin).ravel() for name, begin in start.items()]
    )


def _norm(update: NDArray[np.float64]) -> float:
    return float(np.sqrt(update @ update))
