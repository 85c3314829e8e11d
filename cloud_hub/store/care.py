"""Old rows out, hours into days, a node forgotten; each step short, so that records go on."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select, tuple_
from sqlalchemy.sql.elements import ColumnElement

from cloud_hub.store import days
from cloud_hub.store.database import Database
from cloud_hub.store.sums import DAY_S, HOUR_S, SPAN, TABLES, Sums, columns, keys
from cloud_hub.store.tables import (
    AuditRow,
    Base,
    GenerationRow,
    NodeStateRow,
    RejectedRecordRow,
    SpanRow,
    SpotCheckRow,
    TokenRow,
)

_AT_ONCE = 500  # rows of one deletion: a lock is held for milliseconds


@dataclass(frozen=True, slots=True)
class Keep:
    """How long rows are kept; sums are kept for ever, as days."""

    pictures: timedelta  # and their checks, rejected records, states of nodes
    tokens: timedelta
    hours: timedelta  # until hours become days
    rejected: int  # records set aside, the newest
    bytes: int | None  # of the whole database; beyond it the oldest pictures go first


def care(database: Database, keep: Keep, now: datetime) -> dict[str, int]:
    """Deletes what is older than it is kept for, and merges old hours; how many rows went.

    Raises:
        StoreError: The database cannot be written; what was done stays done.
    """
    gone = {
        "generation": _drop_pictures(database, now - keep.pictures),
        "spot_check": _drop(database, SpotCheckRow, "checked_at", now - keep.pictures),
        "node_state": _drop(database, NodeStateRow, "received_at", now - keep.pictures),
        "rejected_record": _drop(database, RejectedRecordRow, "received_at", now - keep.pictures),
        "token": _drop(database, TokenRow, "received_at", now - keep.tokens),
    }
    gone["rejected_record"] += _drop_rejected(database, keep.rejected)
    if keep.bytes is not None:
        gone["generation"] += _shrink(database, keep.bytes, now)
    merge_hours(database, now - keep.hours)
    database.vacuum()
    return gone


def _drop_pictures(database: Database, before: datetime) -> int:
    """Whole days on PostgreSQL, which takes no time; else rows, a few at a time."""
    if not database.is_sqlite:
        with database.write() as connection:
            return days.drop_days(connection, before)
    return _drop(database, GenerationRow, "received_at", before)


def _drop(database: Database, row: type[Base], moment: str, before: datetime) -> int:
    table: Any = row.__table__
    return _delete(database, table, table.c[moment] < before)


def _delete(database: Database, table: Table, which: ColumnElement[bool]) -> int:
    key, gone = list(table.primary_key), 0
    while True:
        with database.write() as connection:
            some = tuple_(*key).in_(select(*key).where(which).limit(_AT_ONCE))
            # Said again, since a picture has no index of its key on PostgreSQL.
            count = connection.execute(delete(table).where(which, some)).rowcount
        if not count:
            return gone
        gone += count


def _drop_rejected(database: Database, most: int) -> int:
    """Whoever sends junk fills no disk."""
    table: Any = RejectedRecordRow.__table__
    with database.read() as connection:
        newest = select(table.c.id).order_by(table.c.id.desc()).offset(most).limit(1)
        last = connection.execute(newest).scalar()
    return 0 if last is None else _delete(database, table, table.c.id <= last)


def _shrink(database: Database, most: int, now: datetime) -> int:
    """Drops the oldest days until the database is small enough; today always stays."""
    gone = 0
    while database.size() > most:
        with database.read() as connection:
            oldest = connection.execute(select(func.min(GenerationRow.received_at))).scalar()
        if oldest is None or oldest.date() >= now.astimezone(UTC).date():
            return gone
        next_day = oldest.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        gone += _drop_pictures(database, next_day + timedelta(days=1))
        database.vacuum()
    return gone


def merge_hours(database: Database, before: datetime) -> None:
    """Makes one row of a day's hours, for whole days before a moment; no sum changes."""
    midnight = before.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for day, node in _unmerged(database, midnight):
        with database.write() as connection:
            _merge_day(connection, day, node)


def _unmerged(database: Database, before: datetime) -> Iterator[tuple[datetime, str]]:
    oldest = (
        select(SpanRow.starts_at, SpanRow.node_id)
        .where(SpanRow.span_s == HOUR_S, SpanRow.starts_at < before)
        .order_by(SpanRow.starts_at)
        .limit(1)
    )
    while True:
        with database.read() as connection:
            found = connection.execute(oldest).first()
        if found is None:
            return
        yield found.starts_at.astimezone(UTC).replace(hour=0), found.node_id


def _merge_day(connection: Connection, day: datetime, node: str) -> None:
    hours = (
        (SpanRow.span_s == HOUR_S)
        & (SpanRow.node_id == node)
        & (SpanRow.starts_at >= day)
        & (SpanRow.starts_at < day + timedelta(days=1))
    )
    # Whoever merges the same day waits here, and then finds nothing to do.
    spans = connection.execute(select(SpanRow.__table__).where(hours).with_for_update()).all()
    days = {span.id: (day, DAY_S, *(getattr(span, name) for name in SPAN[2:])) for span in spans}
    sums = Sums()
    for table in TABLES:
        there: Any = table.__table__
        for row in connection.execute(select(there).where(there.c.span_id.in_(days))):
            found = row._mapping
            key = tuple(found[name] for name in keys(table))
            amounts = {name: found[name] for name in columns(table)}
            sums.add(table, days[row.span_id], key, amounts)
    sums.write(connection)
    connection.execute(delete(SpanRow).where(SpanRow.id.in_(days)))


def purge(database: Database, node: str, now: datetime) -> dict[str, int]:
    """Forgets a node: every row that names it, sums included; the audit says that it was done.

    Raises:
        StoreError: The database cannot be written.
    """
    gone = {}
    tables = [t for t in reversed(Base.metadata.sorted_tables) if "node_id" in t.c]
    for table in tables:
        gone[table.name] = _delete(database, table, table.c.node_id == node)
    with database.write() as connection:
        audit(connection, "purge", "a node that is not named any more", {"rows": gone}, now)
    return gone


def audit(
    connection: Connection, action: str, target: str, detail: dict[str, Any], now: datetime
) -> None:
    """Notes that somebody at the command line did something."""
    row = {"at": now, "actor": "cli", "action": action, "target": target, "detail": detail}
    connection.execute(AuditRow.__table__.insert(), [row])  # type: ignore[attr-defined]
