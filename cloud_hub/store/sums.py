"""New pictures into the sums, in the transaction that stores them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
from sqlalchemy import Connection

from cloud_hub.store.database import insert_or_add
from cloud_hub.store.tables import Base, CheckSumRow, HistogramRow, ScoreSumRow, SumRow
from fleet.buckets import SCORE_BINS, bucket_of, score_bins
from fleet.protocol.messages import GenerationRecord

HOUR_S, DAY_S = 3600, 86_400

Key = tuple[Any, ...]
_SPAN = ("starts_at", "span_s", "node_id", "device_version", "cloud_version", "policy")
_KEYS: dict[type[Base], tuple[str, ...]] = {
    SumRow: _SPAN,
    HistogramRow: (*_SPAN, "metric", "bucket"),
    ScoreSumRow: (*_SPAN, "score_bin"),
    CheckSumRow: (*_SPAN, "region", "score_bin"),
}
TABLES = tuple(_KEYS)
_COUNTED = {"pictures", "calls", "fallbacks"}
_DECISIONS = 5  # prefix, local, verified, corrected, unverified: `fleet/protocol/messages.py`


class Sums:
    """Rows of sums that grow, until they are added to those in the database."""

    def __init__(self) -> None:
        self._rows: dict[type[Base], dict[Key, dict[str, float]]] = defaultdict(dict)

    def add(self, table: type[Base], key: Key, amounts: Mapping[str, float]) -> None:
        """Adds amounts to the row of `key`, whose parts are in the order of the table's key."""
        row = self._rows[table].setdefault(key, dict.fromkeys(columns(table), 0))
        for name, amount in amounts.items():
            row[name] += amount

    def write(self, connection: Connection) -> None:
        """Adds all rows to the database's, in one order everywhere so that no two hubs lock."""
        for table in TABLES:
            rows = self._rows.get(table)
            if rows:
                keyed = [
                    dict(zip(_KEYS[table], key, strict=True)) | rows[key] for key in sorted(rows)
                ]
                connection.execute(insert_or_add(connection, table, columns(table)), keyed)


@cache
def columns(table: type[Base]) -> tuple[str, ...]:
    """What is summed in a table."""
    return tuple(c.name for c in table.__table__.columns if c.name not in _KEYS[table])


def keys(table: type[Base]) -> tuple[str, ...]:
    """The table's key, in order."""
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
    sums.add(SumRow, span, summed | counted)
    for metric, value in metrics(record).items():
        sums.add(HistogramRow, (*span, metric, bucket_of(value)), {"pictures": 1})
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
        sums.add(ScoreSumRow, (*span, score_bin), became | {"unverified": unverified})


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
