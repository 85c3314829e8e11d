"""What the nodes' answers say, and the messages that a strategy aggregates."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fleet.federation import codec, gate
from fleet.federation.client_app import ABOUT, ARRAYS, METRICS
from fleet.federation.cohort import Ability, Shape
from fleet.federation.ledger import Participant
from fleet.federation.validate import Score


def ability_of(node: int, answer: Message | None) -> Ability | str:
    """What a node could do, or why it does not take part."""
    if answer is None:
        return "did not say what it could do: away, or busy with pictures"
    if answer.has_error():
        return str(answer.error.reason)
    try:
        about = answer.content.config_records[ABOUT]
        counts = answer.content.metric_records[METRICS]
        shape = Shape(
            str(about["backbone"]),
            str(about["head"]),
            int(about["codes"]),  # type: ignore[arg-type]
            int(about["dim"]),  # type: ignore[arg-type]
            int(about["radius-rank"]),  # type: ignore[arg-type]
        )
        return Ability(node, shape, int(counts["samples"]), int(counts["held-out"]))  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        return f"said nothing usable of itself: {error!r}"


def reply_of(node: int, answer: Message) -> gate.Reply:
    """An answer as the gate looks at it."""
    arrays = answer.content.array_records.get(ARRAYS)
    metrics = answer.content.metric_records.get(METRICS)
    return gate.Reply(
        node,
        codec.from_record(arrays) if arrays is not None else {},
        dict(metrics) if metrics is not None else {},
    )


def score_before(answer: Message) -> Score | None:
    """What a node that trained says of the weights it began with; None if nothing usable."""
    return _score(answer, ("loss-before", "tv-before"))


def score_after(answer: Message) -> Score | None:
    """What a node says of the aggregate; None if nothing usable."""
    return _score(answer, ("loss", "tv", "stretch"))


def _score(answer: Message, names: tuple[str, ...]) -> Score | None:
    if answer.has_error():
        return None
    metrics = answer.content.metric_records.get(METRICS, MetricRecord())
    found = [metrics.get(name) for name in names]
    if not all(isinstance(value, float) and np.isfinite(value) for value in found):
        return None
    return Score(*found)  # type: ignore[arg-type]


def weighed(
    messages: Sequence[Message], admitted: Sequence[gate.Admitted], weights: NDArray[np.float64]
) -> list[Message]:
    """The replies as a strategy aggregates them: in fp32, by node, with our weights."""
    asked = {message.metadata.dst_node_id: message for message in messages}
    replies = []
    for each, weight in zip(admitted, weights, strict=True):
        arrays = {name: value.astype(np.float32) for name, value in each.arrays.items()}
        metrics: dict[str, Any] = {"num-examples": float(weight), "loss-before": each.loss_before}
        content = RecordDict({ARRAYS: codec.to_record(arrays), METRICS: MetricRecord(metrics)})
        replies.append(Message(content, reply_to=asked[each.node]))
    return replies


def used(
    admitted: Sequence[gate.Admitted], weights: NDArray[np.float64], after: Mapping[int, Score]
) -> list[Participant]:
    """What became of the nodes that count."""
    shares = weights / weights.sum()
    return [
        Participant(
            node=each.node,
            part="used",
            reason=each.note,
            examples=each.examples,
            weight=float(share),
            loss_before=each.loss_before,
            loss_after=after[each.node].loss if each.node in after else 0.0,
        )
        for each, share in zip(admitted, shares, strict=True)
    ]
