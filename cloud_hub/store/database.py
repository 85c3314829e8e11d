"""A database: SQLite in a file, or PostgreSQL, by its URL.

SQLite runs in WAL mode with full synchronisation, so what was committed survives a power cut,
and every writer takes the write lock at its beginning, so none meets another half-way.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import (
    ARRAY,
    JSON,
    Connection,
    Engine,
    Insert,
    Text,
    any_,
    bindparam,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    SQLAlchemyError,
    StatementError,
)

from cloud_hub.store.tables import Base
from fleet.errors import InvalidInputError, StoreError

_BUSY_TIMEOUT_S = 30
_BEGIN = "sqlite_begin"
_KEPT_PAGES = 64  # free ones that SQLite may keep
_VACUUM_PAGES = 256  # given back in one step


class BadValueError(StoreError):
    """A value that the database does not take; the rest of the batch may be fine."""


class Database:
    """Connections to one database, until the context ends."""

    def __init__(self, url: str, *, must_exist: bool = False) -> None:
        """Opens nothing yet; a SQLite file's folder is made, unless the file must be there.

        Raises:
            StoreError: The URL cannot be used, the file is missing, or its folder not made.
        """
        try:
            self._url = make_url(url)
            self.is_sqlite = self._url.get_backend_name() == "sqlite"
            if self.is_sqlite and self._url.database:
                _check_file(Path(self._url.database), must_exist=must_exist)
            self._engine = _sqlite(url) if self.is_sqlite else _server(url)
        except (ArgumentError, SQLAlchemyError, ImportError) as error:
            raise StoreError(f"the database URL {url!r} cannot be used: {error}") from error
        except OSError as error:
            raise StoreError(f"no database can be kept at {url}: {error.strerror}") from error
        self._writer = self._engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._reader = self._engine
        if not self.is_sqlite:  # which shows a transaction one state anyway
            self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ")

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One transaction that reads, all of it from one state of the database.

        Raises:
            StoreError: The database cannot be reached or read.
        """
        with self._errors(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that writes: committed at the end, or rolled back on any error.

        Raises:
            StoreError: The database cannot be reached or written.
        """
        with self._errors(), self._writer.begin() as connection:
            yield connection

    def select(self, sql: str, limit: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Names and at most `limit` rows of one statement that reads.

        Raises:
            InvalidInputError: It is more than one statement, writes, or gives no rows.
            StoreError: The database cannot be reached or read.
        """
        statement = sql.strip().removesuffix(";")
        if not statement or ";" in statement:
            raise InvalidInputError("give one SQL statement, without a `;` in it")
        only = "PRAGMA query_only = ON" if self.is_sqlite else "SET TRANSACTION READ ONLY"
        if not self.is_sqlite:  # the driver's own placeholder
            statement = statement.replace("%", "%%")
        with self._errors(), self._engine.connect() as connection:
            try:
                connection.exec_driver_sql(only)
                found = connection.exec_driver_sql(statement)
                if not found.returns_rows:
                    raise InvalidInputError("the statement gives no rows: take a SELECT")
                return tuple(found.keys()), [tuple(row) for row in found.fetchmany(limit)]
            except DBAPIError as error:
                raise InvalidInputError(
                    f"the statement cannot be answered: {_first_line(error)}"
                ) from error
            finally:
                connection.invalidate()  # it goes no further with its restriction

    def size(self) -> int:
        """Bytes that the database takes, free pages of SQLite's file not counted.

        Raises:
            StoreError: The database cannot be reached.
        """
        with self.read() as connection:
            if not self.is_sqlite:
                found = connection.exec_driver_sql("SELECT pg_database_size(current_database())")
                return int(found.scalar_one())
            page, pages, free = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("page_size", "page_count", "freelist_count")
            )
            return page * (pages - free)

    def vacuum(self) -> None:
        """Gives SQLite's free pages back to the disk, some at a time; PostgreSQL does it itself.

        Raises:
            StoreError: The database cannot be written.
        """
        if not self.is_sqlite:
            return
        with self._errors(), closing(self._engine.raw_connection()) as connection:
            free, before = _free_pages(connection), -1
            while free > _KEPT_PAGES and free != before:  # a file of old stays as it is
                # Each step of the statement frees one page: it must be read to its end.
                connection.cursor().execute(
                    f"PRAGMA incremental_vacuum({_VACUUM_PAGES})"
                ).fetchall()
                free, before = _free_pages(connection), free

    def driver(self) -> Any:
        """A connection of the driver itself, for measurements; close it."""
        return self._engine.raw_connection()

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DataError, IntegrityError, OverflowError) as error:
            raise BadValueError(f"the database refuses a value: {_first_line(error)}") from error
        except DBAPIError as error:
            raise StoreError(f"the database {self.name}: {_first_line(error)}") from error
        except StatementError as error:  # a value failed before it reached the database
            raise BadValueError(f"the database takes no such value: {error.orig!r}") from error


def _free_pages(connection: Any) -> int:
    return int(connection.cursor().execute("PRAGMA freelist_count").fetchone()[0])


def _check_file(path: Path, *, must_exist: bool) -> None:
    if must_exist and not path.exists():
        raise StoreError(
            f"there is no database at {path}: run this where `cloud_hub serve` runs, or set"
            " data_dir or store.url"
        )
    path.parent.mkdir(parents=True, exist_ok=True)


def insert_new(connection: Connection, row: type[Base]) -> Insert:
    """An INSERT that leaves rows alone whose key is there already."""
    return _insert_new(connection.dialect.name, row)


def is_inserted(connection: Connection, row: type[Base], values: dict[str, Any]) -> bool:
    """Inserts a row; false, and nothing done, if its key is there already.

    A driver's count of rows is of no use here: psycopg says -1 of an INSERT.
    """
    insert = _insert(connection.dialect.name, row).on_conflict_do_nothing()
    done = connection.execute(insert.returning(*row.__table__.primary_key), values)
    return done.first() is not None


def insert_or_update(connection: Connection, row: type[Base], changed: set[str]) -> Insert:
    """An INSERT that sets the `changed` columns where the primary key is there already."""
    return _insert_or_update(connection.dialect.name, row, frozenset(changed))


def insert_or_add(connection: Connection, row: type[Base], summed: Iterable[str]) -> Insert:
    """An INSERT that adds the `summed` columns where the primary key is there already."""
    return _insert_or_add(connection.dialect.name, row, tuple(summed))


def among(dialect: str, column: Any, name: str) -> Any:
    """Whether a column holds one of the texts in the list that is given as `name`.

    The list is one parameter: SQLAlchemy's own way spells the statement anew for each length.
    """
    if dialect == "sqlite":
        given = func.json_each(bindparam(name, type_=JSON)).table_valued("value")
        return column.in_(select(given.c.value))
    return column == any_(bindparam(name, type_=ARRAY(Text)))


# Making a statement takes longer than running it, and there are few: each is made once.


@cache
def _insert_new(dialect: str, row: type[Base]) -> Insert:
    done: Insert = _insert(dialect, row).on_conflict_do_nothing()
    return done


@cache
def _insert_or_update(dialect: str, row: type[Base], changed: frozenset[str]) -> Insert:
    insert = _insert(dialect, row)
    new = {name: insert.excluded[name] for name in sorted(changed)}
    keys = list(row.__table__.primary_key)
    done: Insert = insert.on_conflict_do_update(index_elements=keys, set_=new)
    return done


@cache
def _insert_or_add(dialect: str, row: type[Base], summed: tuple[str, ...]) -> Insert:
    insert, there = _insert(dialect, row), row.__table__.columns
    new = {name: there[name] + insert.excluded[name] for name in summed}
    keys = list(row.__table__.primary_key)
    done: Insert = insert.on_conflict_do_update(index_elements=keys, set_=new)
    return done


def _insert(dialect: str, row: type[Base]) -> Any:
    """An INSERT that knows ON CONFLICT, which both databases spell alike."""
    return (sqlite if dialect == "sqlite" else postgresql).insert(row.__table__)


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else repr(cause)


def _server(url: str) -> Engine:
    return create_engine(url, pool_pre_ping=True)


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # The driver's own BEGIN comes late and never before a CREATE TABLE: we send it.
    connection.isolation_level = None
    # Before the first table: afterwards it takes a rewrite of the whole file.
    for pragma in (
        "auto_vacuum = INCREMENTAL",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))
