"""Locks of processes on what only one of all hubs may conduct: rows that somebody has to renew."""

from datetime import datetime, timedelta

from sqlalchemy import Connection, or_, select, update

from cloud_hub.store.database import insert_new
from cloud_hub.store.tables import RoundLockRow

_L = RoundLockRow


def take(  # who, on what, for what, from when, how long
    connection: Connection, name: str, holder: str, what: str, now: datetime, lease: timedelta
) -> tuple[str, str]:
    """Takes or keeps a lock for `lease` if nobody else has it; who has it now, and for what."""
    values = {"holder": holder, "run_id": what, "until": now + lease}
    connection.execute(insert_new(connection, _L), {"name": name, **values})
    free = or_(_L.holder == holder, _L.until <= now)
    connection.execute(update(_L).where(_L.name == name, free).values(values))
    found = connection.execute(select(_L.holder, _L.run_id).where(_L.name == name)).one()
    return str(found.holder), str(found.run_id)


def leave(connection: Connection, holder: str, now: datetime) -> None:
    """Lets go of what `holder` has."""
    connection.execute(update(_L).where(_L.holder == holder).values(until=now))


def holder_of(connection: Connection, name: str, now: datetime) -> tuple[str, str]:
    """Who has a lock now, and for what; empty: nobody."""
    statement = select(_L.holder, _L.run_id).where(_L.name == name, _L.until > now)
    found = connection.execute(statement).one_or_none()
    return ("", "") if found is None else (str(found.holder), str(found.run_id))
