"""PostgreSQL's partitions of `generation`: one a day (UTC), made ahead, dropped whole."""

from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection, text

_LOCK = 0x63696173  # advisory, for making days


def make_days(connection: Connection, now: datetime) -> None:
    """Makes the partitions of today and tomorrow, where they are missing."""
    if connection.dialect.name == "sqlite":
        return
    today = now.astimezone(UTC).date()
    days = (today, today + timedelta(days=1))
    names = ", ".join(f"to_regclass('{_name(day)}')" for day in days)
    found = connection.execute(text(f"SELECT {names}")).one()
    for day, partition in zip(days, found, strict=True):
        if partition is None:
            _make(connection, day)


def _make(connection: Connection, day: date) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    connection.execute(
        text(
            f"CREATE TABLE IF NOT EXISTS {_name(day)} PARTITION OF generation FOR VALUES"
            f" FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')"
        )
    )


def _name(day: date) -> str:
    return f"generation_{day:%Y%m%d}"


def drop_days(connection: Connection, before: datetime) -> int:
    """Drops the partitions of days that ended before a moment; the rows they held."""
    gone = 0
    for name in _partitions(connection):
        day = datetime.strptime(name, "generation_%Y%m%d").replace(tzinfo=UTC)
        if day + timedelta(days=1) <= before:
            counted = connection.execute(text(f"SELECT count(*) FROM {name}"))  # noqa: S608 - our own name
            gone += int(counted.scalar_one())
            connection.execute(text(f"DROP TABLE {name}"))
    return gone


def _partitions(connection: Connection) -> list[str]:
    query = (
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'generation'::regclass ORDER BY c.relname"
    )
    return list(connection.execute(text(query)).scalars())
