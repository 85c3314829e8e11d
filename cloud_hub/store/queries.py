"""What is asked of the database; the terms are defined in docs/metrics.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Select,
    case,
    cast,
    func,
    select,
    true,
)

from cloud_hub.store.tables import GenerationRow, NodeRow

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
    """One row for each node, by name, over the pictures received since then (or ever)."""
    totals, quantiles = _totals(since).subquery(), _latencies(since).subquery()
    query = (
        select(NodeRow.node_id, NodeRow.state, totals, quantiles.c.p50, quantiles.c.p95)
        .outerjoin(totals, totals.c.node == NodeRow.node_id)
        .outerjoin(quantiles, quantiles.c.node == NodeRow.node_id)
        .order_by(NodeRow.node_id)
    )
    return [_device(row._mapping) for row in connection.execute(query)]


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


def _totals(since: datetime | None) -> Select[Any]:
    # PostgreSQL's sum of bigints is a numeric, which Python reads as a Decimal.
    sums = [func.sum(cast(getattr(_G, name), Double)).label(name) for name in _SUMMED]
    fallbacks = func.sum(case((_G.fallback != "", 1), else_=0)).label("fallbacks")
    columns: list[Any] = [_G.node_id.label("node"), func.count().label("pictures"), *sums]
    return select(*columns, fallbacks).where(_received(since)).group_by(_G.node_id)


def _latencies(since: datetime | None) -> Select[Any]:
    """Nearest-rank quantiles, exact: the ceil(q·n)-th shortest duration of n."""
    ranked = (
        select(
            _G.node_id.label("node"),
            _G.duration_s.label("duration_s"),
            func.row_number().over(partition_by=_G.node_id, order_by=_G.duration_s).label("rank"),
            func.count().over(partition_by=_G.node_id).label("n"),
        )
        .where(_received(since))
        .subquery()
    )

    def quantile(percent: int) -> ColumnElement[float]:
        reached = ranked.c.rank * 100 >= ranked.c.n * percent
        return func.min(case((reached, ranked.c.duration_s)))

    return select(ranked.c.node, quantile(50).label("p50"), quantile(95).label("p95")).group_by(
        ranked.c.node
    )


def _device(row: Any) -> DeviceRow:
    count = int(row["pictures"] or 0)
    return DeviceRow(
        node_id=row["node_id"],
        state=row["state"],
        pictures=count,
        tokens=int(row["tokens"] or 0),
        cloud_share=_ratio(row["forwards"], row["tokens"]),
        local_share=_ratio(row["local"], row["tokens"]),
        corrected_share=_ratio(row["corrected"], row["verified"]),
        round_trips=_ratio(row["round_trips"], count),
        bytes_up=_ratio(row["bytes_up"], count),
        bytes_down=_ratio(row["bytes_down"], count),
        latency_p50_s=row["p50"],
        latency_p95_s=row["p95"],
        tokens_per_s=_ratio(row["tokens"], row["duration_s"]),
        fallbacks=int(row["fallbacks"] or 0),
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return float(part) / float(whole) if part is not None and whole else None
