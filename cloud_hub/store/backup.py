"""A copy of the database while the hub works, and a database made of such a copy.

SQLite copies itself (`VACUUM INTO`); for PostgreSQL its own programs do it.
"""

import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from fleet.errors import InvalidInputError, StoreError


def backup(url: str, file: Path) -> None:
    """Writes a consistent copy; the file appears whole.

    Raises:
        InvalidInputError: The file is there already.
        StoreError: The database cannot be read, or pg_dump is missing or fails.
    """
    if file.exists():
        raise InvalidInputError(f"{file} is there already: a backup replaces no file")
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    partial.unlink(missing_ok=True)
    found = make_url(url)
    if found.get_backend_name() == "sqlite":
        _copy_sqlite(_file_of(found), partial)
    else:
        _run(found, "pg_dump", "--format=custom", f"--file={partial}")
    partial.replace(file)


def restore(url: str, file: Path) -> None:
    """Makes an empty database what the copy holds; `cloud_hub migrate` then brings it up to date.

    Raises:
        InvalidInputError: There is no such file, or the SQLite database is there already.
        StoreError: The copy cannot be read, or pg_restore is missing or fails.
    """
    if not file.exists():
        raise InvalidInputError(f"there is no backup at {file}")
    found = make_url(url)
    if found.get_backend_name() != "sqlite":
        _run(
            found, "pg_restore", "--exit-on-error", "--single-transaction", "--no-owner", str(file)
        )
        return
    place = _file_of(found)
    if place.exists():
        raise InvalidInputError(f"{place} is there already: stop the hub and move it away first")
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(place.name + ".partial")
    partial.unlink(missing_ok=True)
    _copy_sqlite(file, partial)
    partial.replace(place)


def _file_of(url: URL) -> Path:
    return Path(url.database or "")


def _copy_sqlite(source: Path, target: Path) -> None:
    if not source.exists():
        raise StoreError(f"there is no database at {source}")
    try:
        connection = sqlite3.connect(f"file:{source}?mode=ro", uri=True)
        try:
            connection.execute("VACUUM INTO ?", (str(target),))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(f"{source} cannot be copied: {error}") from error


def _run(url: URL, program: str, *arguments: str) -> None:
    found = shutil.which(program)
    if found is None:
        raise StoreError(f"{program} is not installed: it comes with PostgreSQL's client programs")
    parts = {
        "PGHOST": url.host,
        "PGPORT": str(url.port) if url.port else None,
        "PGUSER": url.username,
        "PGPASSWORD": str(url.password) if url.password else None,
    }
    environment = os.environ | {name: value for name, value in parts.items() if value}
    database = ["--dbname", url.database or ""]
    done = subprocess.run(
        [found, *database, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise StoreError(f"{program} failed: {lines[-1]}")
