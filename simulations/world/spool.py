"""A spool whose disk is full: SQLite's own refusal, from the spool's file itself."""

import sqlite3
from contextlib import closing
from pathlib import Path

SPOOL = "outbox.sqlite"  # in an agent's state folder

_REFUSED = [
    (table, change) for table in ("record", "counter") for change in ("INSERT", "UPDATE", "DELETE")
]


def fill(spool: Path) -> None:
    """Makes the spool refuse every change, whoever opens it, as on a full disk."""
    for table, change in _REFUSED:
        _run(
            spool,
            f"CREATE TRIGGER IF NOT EXISTS full_{table}_{change} BEFORE {change} ON {table}"
            " BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
        )


def clear(spool: Path) -> None:
    """Lets it take changes again."""
    for table, change in _REFUSED:
        _run(spool, f"DROP TRIGGER IF EXISTS full_{table}_{change}")


def _run(spool: Path, statement: str) -> None:
    with closing(sqlite3.connect(spool, isolation_level=None)) as connection:
        connection.execute(statement)
