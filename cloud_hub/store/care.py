"""Old rows out, sums added up, a node forgotten; each step short, so that records go on."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Table, delete, func, select, tuple_
from sqlalchemy.sql.elements import ColumnElement

from cloud_hub.store import days
from cloud_hub.store.adding_up import add_up, hours_to_drop
from cloud_hub.store.database import Database
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
_SPANS_AT_ONCE = 20  # each takes some hundred rows of sums along


@dataclass(frozen=True, slots=True)
class Keep:
    """How long rows are kept; sums are kept for ever, as days and months."""

    pictures: timedelta  # and their checks, rejected records, states of nodes
    tokens: timedelta
    hours: timedelta  # of sums, beside their days
    rejected: int  # records set aside, the newest
    bytes: int | None  # of the whole database; beyond it the oldest pictures go first


def care(database: Database, keep: Keep, now: datetime) -> dict[str, int]:
    """Deletes what is older than it is kept for, and adds sums up; how many rows went.

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
    add_up(database, now)
    _drop_hours(database, keep.hours, now)
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


def _drop_hours(database: Database, keep: timedelta, now: datetime) -> None:
    with database.read() as connection:
        which = hours_to_drop(connection, keep, now)
    _delete(database, SpanRow.__table__, which, _SPANS_AT_ONCE)  # type: ignore[arg-type]


def _delete(
    database: Database, table: Table, which: ColumnElement[bool], at_once: int = _AT_ONCE
) -> int:
    key, gone = list(table.primary_key), 0
    while True:
        with database.write() as connection:
            some = tuple_(*key).in_(select(*key).where(which).limit(at_once))
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
