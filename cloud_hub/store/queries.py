"""What is asked of the database; the terms are defined in docs/metrics.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, select, true

from cloud_hub.store.groups import group_buckets, grouped
from cloud_hub.store.periods import Period
from cloud_hub.store.tables import GenerationRow, NodeRow, SumRow
from fleet.buckets import quantile

_G = GenerationRow
_SUMMED = (
    "tokens",
    "local",
    "verified",
    "corrected",
    "forwards",
    "round_trips",
    "bytes_up",
    "bytes_down",
    "duration_s",
)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One node's pictures in a period; shares are None where nothing was counted below them."""

    node_id: str
    state: str
    pictures: int
    tokens: int
    cloud_share: float | None  # forwards / tokens
    local_share: float | None  # local / tokens
    corrected_share: float | None  # corrected / verified
    round_trips: float | None  # a picture
    bytes_up: float | None  # a picture
    bytes_down: float | None  # a picture
    latency_p50_s: float | None
    latency_p95_s: float | None
    tokens_per_s: float | None
    fallbacks: int


@dataclass(frozen=True, slots=True)
class PictureRow:
    """One picture as a line of `cloud_hub query generations`."""

    received_at: datetime
    node_id: str
    generation_id: str
    policy: str
    threshold: float
    tokens: int
    local: int
    verified: int
    corrected: int
    forwards: int
    round_trips: int
    bytes_up: int
    bytes_down: int
    duration_s: float
    fallback: str


@dataclass(frozen=True, slots=True)
class Story:
    """The packed arrays of one picture's tokens, as in `fleet/protocol/arrays.py`."""

    node_id: str
    threshold: float
    scores: bytes
    decisions: bytes
    confidences: bytes


def devices(connection: Connection, since: datetime | None = None) -> list[DeviceRow]:
    """One row for each node, by name, over the pictures received since then (or ever).

    All of it comes from the sums: `since` is that of `answers`, and a latency is within
    `buckets.ALPHA` of that of its rank.
    """
    period = Period(since)
    names = ("pictures", "fallbacks", *_SUMMED)
    totals = dict(grouped(connection, SumRow, ["node"], period, names))
    lasted = {
        node: list(zip(buckets.tolist(), counts[:, 0].tolist(), strict=True))
        for (node,), buckets, counts in group_buckets(connection, ["node"], period, ("duration_s",))
    }
    nodes = connection.execute(select(NodeRow.node_id, NodeRow.state).order_by(NodeRow.node_id))
    return [
        _device(node, state, totals.get(node, {}), lasted.get(node, [])) for node, state in nodes
    ]


def pictures(
    connection: Connection, since: datetime | None = None, limit: int = 100
) -> list[PictureRow]:
    """The latest pictures received since then (or ever), newest first."""
    names = PictureRow.__dataclass_fields__
    query = (
        select(*(getattr(_G, name) for name in names))
        .where(_received(since))
        .order_by(_G.received_at.desc(), _G.id.desc())
        .limit(limit)
    )
    return [PictureRow(**row._mapping) for row in connection.execute(query)]


def stories(connection: Connection, generation_ids: Sequence[str]) -> dict[str, Story]:
    """The tokens' stories of those of the given pictures that are stored, by generation."""
    columns = [getattr(_G, name) for name in Story.__dataclass_fields__]
    query = select(_G.generation_id, *columns).where(_G.generation_id.in_(generation_ids))
    return {row[0]: Story(*row[1:]) for row in connection.execute(query)}


def _received(since: datetime | None) -> ColumnElement[bool]:
    return _G.received_at >= since if since is not None else true()


def _device(
    node: str, state: str, sums: Mapping[str, float], lasted: Sequence[tuple[int, int]]
) -> DeviceRow:
    count = sums.get("pictures", 0)

    def share(part: str, whole: str) -> float | None:
        return _ratio(sums.get(part), sums.get(whole))

    return DeviceRow(
        node_id=node,
        state=state,
        pictures=int(count),
        tokens=int(sums.get("tokens", 0)),
        cloud_share=share("forwards", "tokens"),
        local_share=share("local", "tokens"),
        corrected_share=share("corrected", "verified"),
        round_trips=share("round_trips", "pictures"),
        bytes_up=share("bytes_up", "pictures"),
        bytes_down=share("bytes_down", "pictures"),
        latency_p50_s=quantile(lasted, 0.5) if lasted else None,
        latency_p95_s=quantile(lasted, 0.95) if lasted else None,
        tokens_per_s=share("tokens", "duration_s"),
        fallbacks=int(sums.get("fallbacks", 0)),
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return float(part) / float(whole) if part is not None and whole else None
