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
