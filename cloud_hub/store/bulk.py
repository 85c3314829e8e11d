"""Many rows by one statement, as tuples straight to the driver.

SQLAlchemy makes a dictionary of each row and looks at each of its values; for the records of a
fleet that took several times as long as the database itself. It still spells the statement here,
and its types still say what a value becomes, once for each statement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Dialect, Executable
from sqlalchemy.dialects.postgresql import psycopg

Row = tuple[Any, ...]
_STATEMENTS = 64  # that are kept as text; there are far fewer


def write_rows(
    connection: Connection, statement: Executable, names: tuple[str, ...], rows: Sequence[Row]
) -> None:
    """Runs a statement once for each row; nothing where there is none.

    Args:
        connection: In a transaction that writes.
        statement: Made once and kept: its text is kept by it.
        names: Of the statement's parameters, all of them.
        rows: Their values, in the order of `names`.
    """
    if rows:
        ready = _ready(connection.dialect, statement, names)
        connection.exec_driver_sql(ready.sql, ready.of(rows))


@dataclass(frozen=True, slots=True)
class _Ready:
    """A statement as the driver takes it.

    Attributes:
        order: A row's values in the order of the text, None where they are in it.
        packs: What its type makes of a value, by place; most values stay as they are.
    """

    sql: str
    order: Callable[[Row], Row] | None
    packs: tuple[tuple[int, Callable[[Any], Any]], ...]

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """The rows as the driver takes them."""
        ordered = list(rows) if self.order is None else list(map(self.order, rows))
        if not self.packs:
            return ordered
        columns = list(zip(*ordered, strict=True))
        for place, pack in self.packs:
            column, first = columns[place], columns[place][0]
            if all(value is first for value in column):  # the moment of a batch
                columns[place] = (pack(first),) * len(column)
            else:
                columns[place] = tuple(map(pack, column))
        return list(zip(*columns, strict=True))


def _by_place() -> Dialect:
    """PostgreSQL's spelling with placeholders that have no names."""
    found: Dialect = psycopg.dialect(paramstyle="format")  # type: ignore[no-untyped-call]
    return found


@lru_cache(maxsize=_STATEMENTS)
def _ready(dialect: Dialect, statement: Any, names: tuple[str, ...]) -> _Ready:
    # Values by place, not by name, on both databases.
    speech = dialect if dialect.positional else _by_place()
    spelt = statement.compile(dialect=speech, column_keys=list(names))
    places = [names.index(name) for name in spelt.positiontup]
    kinds = [spelt.binds[name].type for name in spelt.positiontup]
    made = [kind.dialect_impl(dialect).bind_processor(dialect) for kind in kinds]
    return _Ready(
        str(spelt),
        None if places == list(range(len(names))) else itemgetter(*places),
        tuple((place, pack) for place, pack in enumerate(made) if pack is not None),
    )
