"""New pictures into the sums, in the transaction that stores them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, Subquery, bindparam, select

from cloud_hub.store.database import insert_new, insert_or_add
from cloud_hub.store.tables import Base, CheckSumRow, HistogramRow, ScoreSumRow, SpanRow, SumRow
from fleet.buckets import SCORE_BINS, bucket_of, score_bins
from fleet.protocol.messages import GenerationRecord

HOUR_S, DAY_S = 3600, 86_400

Key = tuple[Any, ...]
SPAN = ("starts_at", "span_s", "node_id", "device_version", "cloud_version", "policy")
_KEYS: dict[type[Base], tuple[str, ...]] = {  # beside the span
    SumRow: (),
    HistogramRow: ("metric", "bucket"),
    ScoreSumRow: ("score_bin",),
    CheckSumRow: ("region", "score_bin"),
}
TABLES = tuple(_KEYS)
_COUNTED = {"pictures", "calls", "fallbacks"}
_DECISIONS = 5  # prefix, local, verified, corrected, unverified: `fleet/protocol/messages.py`


class Sums:
    """Rows of sums that grow, until they are added to those in the database."""

    def __init__(self) -> None:
        self._rows: dict[type[Base], dict[tuple[Key, Key], dict[str, float]]] = defaultdict(dict)

    def add(self, table: type[Base], span: Key, key: Key, amounts: Mapping[str, float]) -> None:
        """Adds amounts to a row; the parts of `span` and `key` are in the order of `keys`."""
        row = self._rows[table].setdefault((span, key), dict.fromkeys(columns(table), 0))
        for name, amount in amounts.items():
            row[name] += amount

    def write(self, connection: Connection) -> None:
        """Adds all rows to the database's, in one order everywhere so that no two hubs lock."""
        numbers = _numbers(connection, {span for rows in self._rows.values() for span, _ in rows})
        for table in TABLES:
            rows = self._rows.get(table)
            if rows:
                names = ("span_id", *_KEYS[table])
                keyed = [
                    dict(zip(names, (numbers[span], *key), strict=True)) | rows[span, key]
                    for span, key in sorted(rows)
                ]
                connection.execute(insert_or_add(connection, table, columns(table)), keyed)


def _numbers(connection: Connection, spans: set[Key]) -> dict[Key, int]:
    """The numbers of spans, which are there afterwards."""
    if not spans:
        return {}
    rows = [dict(zip(SPAN, span, strict=True)) for span in sorted(spans)]
    connection.execute(insert_new(connection, SpanRow), rows)
    # Nearly all spans of a batch begin in one hour: what else its nodes have there is little.
    asked = {
        "hours": list({row["starts_at"] for row in rows}),
        "nodes": list({row["node_id"] for row in rows}),
    }
    return {tuple(span): number for number, *span in connection.execute(_spans(), asked)}


@cache
def _spans() -> Select[Any]:
    """Spans by when they begin (`hours`) and whose they are (`nodes`); made once."""
    return select(SpanRow.id, *(getattr(SpanRow, name) for name in SPAN)).where(
        SpanRow.starts_at.in_(bindparam("hours", expanding=True)),
        SpanRow.node_id.in_(bindparam("nodes", expanding=True)),
    )


@cache
def rows_of(table: type[Base]) -> Subquery:
    """The rows of a sum with the columns of their span."""
    own = [c for c in table.__table__.columns if c.name != "span_id"]
    spans = [SpanRow.__table__.c[name] for name in SPAN]
    joined = table.__table__.join(SpanRow.__table__)
    return select(*spans, *own).select_from(joined).subquery(table.__tablename__)


@cache
def columns(table: type[Base]) -> tuple[str, ...]:
    """What is summed in a table."""
    names = (c.name for c in table.__table__.columns)
    return tuple(name for name in names if name not in ("span_id", *_KEYS[table]))


def keys(table: type[Base]) -> tuple[str, ...]:
    """What a row is of, beside its span; in order."""
    return _KEYS[table]


def hour_of(moment: datetime) -> datetime:
    """The hour (UTC) that a moment lies in."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def count_pictures(
    connection: Connection, pictures: Iterable[tuple[str, GenerationRecord]], now: datetime
) -> None:
    """Adds pictures (node, record) that were not there before to the sums."""
    sums = Sums()
    hour = hour_of(now)
    for node, record in pictures:
        versions = (record.device_version, record.cloud_version, record.policy)
        _count(sums, (hour, HOUR_S, node, *versions), record)
    sums.write(connection)


def _count(sums: Sums, span: Key, record: GenerationRecord) -> None:
    summed = {name: getattr(record, name) for name in columns(SumRow) if name not in _COUNTED}
    took_part = record.forwards > 0
    counted = {"pictures": 1, "calls": int(took_part), "fallbacks": int(record.fallback != "")}
    sums.add(SumRow, span, (), summed | counted)
    for metric, value in metrics(record).items():
        sums.add(HistogramRow, span, (metric, bucket_of(value)), {"pictures": 1})
    bins = score_bins(np.frombuffer(record.scores, np.uint8))
    decisions = np.frombuffer(record.decisions, np.uint8)
    if len(bins) != len(decisions):  # a picture whose arrays the node dropped, or never kept
        return
    known = decisions < _DECISIONS
    cells = bins[known] * _DECISIONS + decisions[known]
    counts = np.bincount(cells, minlength=SCORE_BINS * _DECISIONS).reshape(-1, _DECISIONS)
    for score_bin in np.flatnonzero(counts[:, 1:].any(axis=1)).tolist():
        _, local, stood, corrected, unverified = counts[score_bin].tolist()
        became = {"local": local, "verified": stood + corrected, "corrected": corrected}
        sums.add(ScoreSumRow, span, (score_bin,), became | {"unverified": unverified})


def metrics(record: GenerationRecord) -> dict[str, float]:
    """What histograms are kept of."""
    return {
        "duration_s": record.duration_s,
        "device_s": record.device_s,
        "wait_s": record.wait_s,
        "queue_s": record.queue_s,
        "forward_s": record.forward_s,
        "bytes": record.bytes_up + record.bytes_down,
    }
