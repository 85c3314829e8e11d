"""Hours into days and days into months, each once, when they are over; both stay side by side.

Sums of a moment go to its hour, or to the first one that is still open. An hour is closed by a
mark; nothing is written before that afterwards, so what is added up is what there is.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, func, literal, select, text, update
from sqlalchemy.orm import aliased

from cloud_hub.store.database import Database, insert_new, insert_or_add
from cloud_hub.store.periods import DAY_S, HOUR_S, MONTH_S, Marks, begin_of, end_of, marks
from cloud_hub.store.sums import CLOSING, SPAN, TABLES, columns, keys
from cloud_hub.store.tables import Base, SpanRow, SumMarkRow

_OF_SPAN = SPAN[2:]  # whose a span is
_WAIT_S = 5  # for transactions that are writing, until the next time


def add_up(database: Database, now: datetime) -> None:
    """Closes the hours before now's, and brings days and months up to them.

    Raises:
        StoreError: The database cannot be written, or a transaction of a hub stands still.
    """
    with database.write() as connection:
        _close(connection, begin_of(now, HOUR_S))
    for length, shorter in ((DAY_S, HOUR_S), (MONTH_S, DAY_S)):
        is_more = True
        while is_more:  # a day of hours at a time, so that no transaction is long
            with database.write() as connection:
                is_more = _add_one(connection, length, shorter)


def hours_to_drop(connection: Connection, keep: timedelta, now: datetime) -> Any:
    """Which spans are hours that are older than `keep` and in days that are over."""
    before = min(begin_of(now - keep, DAY_S), begin_of(marks(connection).days, DAY_S))
    return and_(SpanRow.span_s == HOUR_S, SpanRow.starts_at < before)


def _close(connection: Connection, hour: datetime) -> None:
    is_server = connection.dialect.name != "sqlite"
    if is_server:
        connection.execute(text(f"SET LOCAL lock_timeout = '{_WAIT_S}s'"))
    # Who adds up is waited for first: while this waits for writers, no further one may begin.
    if marks(connection, locked=True).hours >= hour:
        return
    if is_server:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CLOSING})
    _set(connection, HOUR_S, hour)


def _add_one(connection: Connection, length: int, shorter: int) -> bool:
    """Adds what is over of one long span; whether there is more to add."""
    found = marks(connection, locked=True)
    begins, over = _open(found, length)
    inside = and_(SpanRow.span_s == shorter, SpanRow.starts_at >= begins, SpanRow.starts_at < over)
    first = connection.execute(select(func.min(SpanRow.starts_at)).where(inside)).scalar()
    if first is None:
        if begins < over:
            _set(connection, length, over)
        return False
    start = begin_of(first, length)
    end = min(end_of(start, length), over)
    _add(connection, (length, start), (shorter, begins, end))
    _set(connection, length, end)
    return end < over


def _open(found: Marks, length: int) -> tuple[datetime, datetime]:
    """From when to when shorter spans wait for being added."""
    if length == DAY_S:
        return found.days, found.hours
    return found.months, begin_of(found.days, DAY_S)


def _add(
    connection: Connection, long: tuple[int, datetime], short: tuple[int, datetime, datetime]
) -> None:
    (length, start), (shorter, begins, end) = long, short
    part, whole = aliased(SpanRow), aliased(SpanRow)
    parts = and_(part.span_s == shorter, part.starts_at >= begins, part.starts_at < end)
    whose = [getattr(part, name) for name in _OF_SPAN]
    moment: Any = literal(start, SpanRow.starts_at.type)
    spans = select(moment, literal(length), *whose).where(parts).distinct()
    connection.execute(insert_new(connection, SpanRow).from_select(list(SPAN), spans))
    same = and_(
        whole.span_s == length,
        whole.starts_at == start,
        *(getattr(whole, name) == getattr(part, name) for name in _OF_SPAN),
    )
    for table in TABLES:
        _add_rows(connection, table, select(part.id, whole.id).join(whole, same).where(parts))


def _add_rows(connection: Connection, table: type[Base], pairs: Any) -> None:
    there: Any = table.__table__.c
    pair = pairs.subquery()
    short_id, long_id = pair.c
    groups = [long_id, *(there[name] for name in keys(table))]
    sums = [func.sum(there[name]) for name in columns(table)]
    rows = (
        select(*groups, *sums)
        .join_from(table, pair, there.span_id == short_id)
        .where(literal(1) == 1)  # SQLite takes ON CONFLICT for a join's ON without it
        .group_by(*groups)
    )
    names = ["span_id", *keys(table), *columns(table)]
    connection.execute(insert_or_add(connection, table, columns(table)).from_select(names, rows))


def _set(connection: Connection, length: int, until: datetime) -> None:
    mark = SumMarkRow.span_s == length
    connection.execute(update(SumMarkRow).where(mark).values(until=until))
