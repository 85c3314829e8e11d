"""Which revision a database stands at, and how it gets to this release's.

An empty database is new; one behind needs `cloud_hub migrate`; one ahead was migrated by a later
release. Migrations run in one transaction, one process at a time.
"""

from enum import Enum
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from cloud_hub.store import views
from cloud_hub.store.database import Database
from fleet.errors import StoreError

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
_LOCK = 0x63696172  # PostgreSQL's advisory lock for migrations of this program


class Standing(Enum):
    """Where a database stands against this release."""

    NEW = "new"  # holds no table at all
    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"
    FOREIGN = "foreign"  # holds tables, none of them ours


_ADVICE = {
    Standing.NEW: "is empty: run `cloud_hub migrate`",
    Standing.BEHIND: "is of an earlier release: back it up, then run `cloud_hub migrate`",
    Standing.AHEAD: "was migrated by a later release, and this one is older: install that one",
    Standing.FOREIGN: "holds tables of another program: give the hub a database of its own",
}


def head() -> str:
    """The revision of this release."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise StoreError(f"this installation has no migrations at {MIGRATIONS}: install it again")
    return revision


def standing(database: Database) -> Standing:
    """Where the database stands.

    Raises:
        StoreError: It cannot be read.
    """
    with database.read() as connection:
        return _standing(connection)


def require_current(database: Database) -> None:
    """Refuses any database but one at this release's revision.

    Raises:
        StoreError: With what to do.
    """
    found = standing(database)
    if found is not Standing.CURRENT:
        raise StoreError(f"the database {database.name} {_ADVICE[found]}")


def prepare(database: Database, *, create: bool) -> None:
    """Makes sure that the database is current; a new one gets its tables if `create`.

    Raises:
        StoreError: It is of another revision, or cannot be used.
    """
    if create and standing(database) is Standing.NEW:
        migrate(database)
    require_current(database)


def migrate(database: Database, to: str = "head") -> str:
    """Brings the database to this release's revision (or one before), which is returned.

    Raises:
        StoreError: It is ahead of this release, of another program, or cannot be used.
    """
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        before = _standing(connection)
        if before in {Standing.NEW, Standing.BEHIND}:
            views.drop(connection)
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, to)
            if to == "head":
                views.make(connection)
    if to != "head":
        return to
    require_current(database)
    return head()


def _standing(connection: Connection) -> Standing:
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return Standing.NEW
    if "alembic_version" not in tables:
        return Standing.FOREIGN
    found = MigrationContext.configure(connection).get_current_revision()
    if found == head():
        return Standing.CURRENT if views.are_current(connection) else Standing.BEHIND
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return Standing.BEHIND if found is None or found in known else Standing.AHEAD


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
