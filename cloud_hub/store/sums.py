"""New pictures into the sums, in the transaction that stores them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import add, attrgetter
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, Subquery, bindparam, select, text

from cloud_hub.store.bulk import write_rows
from cloud_hub.store.database import among, insert_new, insert_or_add
from cloud_hub.store.periods import HOUR_S, begin_of
from cloud_hub.store.tables import (
    Base,
    CheckSumRow,
    HistogramRow,
    ScoreSumRow,
    SpanRow,
    SumMarkRow,
    SumRow,
)
from fleet.buckets import SCORE_BINS, bucket_of, score_bins
from fleet.protocol.messages import GenerationRecord

CLOSING = 0x63696175  # PostgreSQL's advisory lock: shared by who writes, whole of who closes hours

Key = tuple[Any, ...]
SPAN = ("starts_at", "span_s", "node_id", "device_version", "cloud_version", "policy")
_KEYS: dict[type[Base], tuple[str, ...]] = {  # beside the span
    SumRow: (),
    HistogramRow: ("bucket",),
    ScoreSumRow: ("score_bin",),
    CheckSumRow: ("region", "score_bin"),
}
TABLES = tuple(_KEYS)
_DECISIONS = 5  # prefix, local, verified, corrected, unverified: `fleet/protocol/messages.py`


class Sums:
    """Rows of sums that grow, until they are added to those in the database."""

    def __init__(self) -> None:
        self._spans: dict[Key, int] = {}  # each with a number of its own, here alone
        self._rows: dict[type[Base], dict[Key, Key]] = {table: {} for table in TABLES}

    def add(self, table: type[Base], span: Key, key: Key, amounts: Mapping[str, float]) -> None:
        """Adds amounts to a row; the parts of `span` and `key` are in the order of `keys`."""
        every = tuple(amounts.get(name, 0) for name in columns(table))
        self.add_row(table, self.place(span), key, every)

    def place(self, span: Key) -> int:
        """The number of a span for `add_row`: 0, 1, and so on, in the order of asking."""
        return self._spans.setdefault(span, len(self._spans))

    def add_row(self, table: type[Base], place: int, key: Key, amounts: Key) -> None:
        """Adds amounts, in the order of `columns`, to a row of a span by its `place`."""
        rows, whose = self._rows[table], (place, *key)
        there = rows.get(whose)
        rows[whose] = amounts if there is None else tuple(map(add, there, amounts))

    def write(self, connection: Connection) -> list[int]:
        """Adds all rows to the database's; the numbers of the spans there, by place."""
        found = _numbers(connection, set(self._spans))
        numbers = [found[span] for span in self._spans]
        for table, there in self._rows.items():
            rows = [(numbers[place], *key, *amounts) for (place, *key), amounts in there.items()]
            _add(connection, table, rows)
        return numbers


def _add(connection: Connection, table: type[Base], rows: Iterable[Key]) -> None:
    """Adds rows of a table, in one order everywhere so that no two hubs lock each other."""
    names = ("span_id", *_KEYS[table], *columns(table))
    write_rows(connection, insert_or_add(connection, table, columns(table)), names, sorted(rows))


def _numbers(connection: Connection, spans: set[Key]) -> dict[Key, int]:
    """The numbers of spans, which are there afterwards."""
    if not spans:
        return {}
    found = _known(connection, spans)
    if missing := sorted(spans - found.keys()):
        write_rows(connection, insert_new(connection, SpanRow), SPAN, missing)
        found = _known(connection, spans)
    return found


def _known(connection: Connection, spans: set[Key]) -> dict[Key, int]:
    # Nearly all spans of a batch begin in one hour: what else its nodes have there is little.
    asked = {
        "hours": list({starts_at for starts_at, *_ in spans}),
        "nodes": list({node for _, _, node, *_ in spans}),
    }
    found = connection.execute(_spans(connection.dialect.name), asked).all()
    return {tuple(span): number for number, *span in found}


@cache
def _spans(dialect: str) -> Select[Any]:
    """Spans by when they begin (`hours`) and whose they are (`nodes`); made once."""
    return select(SpanRow.id, *(getattr(SpanRow, name) for name in SPAN)).where(
        SpanRow.starts_at.in_(bindparam("hours", expanding=True)),
        among(dialect, SpanRow.node_id, "nodes"),
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


def first_open_hour(connection: Connection) -> datetime:
    """The first hour that sums may still be added to; it stays open until the transaction ends."""
    if connection.dialect.name != "sqlite":  # there one transaction writes at a time
        connection.execute(_HELD_OPEN, {"key": CLOSING})
    until: datetime = connection.execute(_CLOSED).scalar_one()
    return until


_HELD_OPEN = text("SELECT pg_advisory_xact_lock_shared(:key)")
_CLOSED = select(SumMarkRow.until).where(SumMarkRow.span_s == HOUR_S)


def count_pictures(
    connection: Connection, pictures: Iterable[tuple[str, GenerationRecord]], now: datetime
) -> None:
    """Adds pictures (node, record) that were not there before to the sums."""
    sums = Sums()
    hour = max(begin_of(now, HOUR_S), first_open_hour(connection))
    with_arrays: list[tuple[int, GenerationRecord]] = []
    for node, record in pictures:
        versions = (record.device_version, record.cloud_version, record.policy)
        place = sums.place((hour, HOUR_S, node, *versions))
        counted = (1, int(record.forwards > 0), int(record.fallback != ""))
        sums.add_row(SumRow, place, (), counted + _summed()(record))
        for one, value in zip(_ones(), _measured(record), strict=True):
            sums.add_row(HistogramRow, place, (bucket_of(value),), one)
        if len(record.scores) == len(record.decisions):  # else the node dropped or never kept them
            with_arrays.append((place, record))
    numbers = sums.write(connection)
    if with_arrays:
        _add(connection, ScoreSumRow, _scores(numbers, with_arrays))


@cache
def _summed() -> Callable[[GenerationRecord], Key]:
    """What a picture's row and the sum of pictures share, behind what is only counted there."""
    return attrgetter(*columns(SumRow)[len(("pictures", "calls", "fallbacks")) :])


def _scores(numbers: list[int], pictures: Sequence[tuple[int, GenerationRecord]]) -> Iterable[Key]:
    """What became of the tokens of all pictures (place, record), counted at once."""
    scores = np.frombuffer(b"".join(record.scores for _, record in pictures), np.uint8)
    decisions = np.frombuffer(b"".join(record.decisions for _, record in pictures), np.uint8)
    order = np.argsort(numbers)  # so that rows come out in the order they are written in
    ranks = np.argsort(order)[[place for place, _ in pictures]]
    spans = np.repeat(ranks, [len(record.scores) for _, record in pictures])
    known = decisions < _DECISIONS
    cells = ((spans * SCORE_BINS + score_bins(scores)) * _DECISIONS + decisions)[known]
    cells_of_all = len(numbers) * SCORE_BINS * _DECISIONS
    counts = np.bincount(cells, minlength=cells_of_all).reshape(-1, _DECISIONS)
    some = np.flatnonzero(counts[:, 1:].any(axis=1))
    _, local, stood, corrected, unverified = counts[some].T
    key = (np.array(numbers)[order][some // SCORE_BINS], some % SCORE_BINS)
    became = (local, stood + corrected, corrected, unverified)
    return map(tuple, np.column_stack((*key, *became)).tolist())


def _measured(record: GenerationRecord) -> tuple[float, ...]:
    """What histograms are kept of, in the order of their columns."""
    return (
        record.duration_s,
        record.device_s,
        record.wait_s,
        record.queue_s,
        record.forward_s,
        record.bytes_up + record.bytes_down,
    )


@cache
def _ones() -> list[tuple[int, ...]]:
    """One picture of each metric, as amounts of a histogram's row."""
    count = len(columns(HistogramRow))
    return [tuple(int(place == metric) for place in range(count)) for metric in range(count)]
