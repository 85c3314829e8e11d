"""Rows for an export: of a table and a span of hub time, as plain values."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, FromClause, func, select, text

from cloud_hub.store.histograms import by_metric
from cloud_hub.store.periods import DAY_S, Period, marks
from cloud_hub.store.sums import TABLES, rows_of
from cloud_hub.store.tables import (
    AuditRow,
    Base,
    CheckSumRow,
    GenerationRow,
    HistogramRow,
    ModelVersionRow,
    NodeRow,
    NodeStateRow,
    ScoreSumRow,
    SpotCheckRow,
    SumRow,
    ThresholdRow,
    TokenRow,
    UtcDateTime,
)

# The moment that a table's rows are cut into hours by.
_HOURLY: dict[type[Base], str] = {
    GenerationRow: "received_at",
    SpotCheckRow: "checked_at",
    NodeStateRow: "received_at",
    TokenRow: "received_at",
    SumRow: "starts_at",
    HistogramRow: "starts_at",
    ScoreSumRow: "starts_at",
    CheckSumRow: "starts_at",
    AuditRow: "at",
}
_WHOLE: tuple[type[Base], ...] = (NodeRow, ThresholdRow, ModelVersionRow)

# Rows of these are changed by what comes later, and hours go into the row of their day.
SUMS = {row.__tablename__: row for row in TABLES}


def _rows_of(row: type[Base]) -> FromClause:
    if row is HistogramRow:
        return by_metric()
    return rows_of(row) if row in TABLES else row.__table__


HOURLY = {row.__tablename__: (_rows_of(row), moment) for row, moment in _HOURLY.items()}
WHOLE = {row.__tablename__: row.__table__ for row in _WHOLE}


def span(table: str) -> timedelta:
    """What a table is cut into: hours, or days if it holds sums."""
    return timedelta(days=1) if table in SUMS else timedelta(hours=1)


def spans(connection: Connection, table: str, since: datetime | None) -> dict[datetime, int]:
    """How many rows each span has that ends after `since`, by its beginning."""
    found, name = HOURLY[table]
    moment = found.c[name]
    lite, full = ("%H", "HH24") if table not in SUMS else ("00", "00")
    if connection.dialect.name == "sqlite":
        hour = func.strftime(f"%Y-%m-%dT{lite}:00:00+00:00", moment)
    else:
        zoned = func.timezone("UTC", moment)
        hour = func.to_char(zoned, f'YYYY-MM-DD"T"{full}":00:00+00:00"')
    # A column of text: the moment's own type would read it as a moment.
    query = select(hour.label("hour"), func.count().label("n")).group_by(text("hour"))
    if since is not None:
        query = query.where(moment >= since)
    if table in SUMS:
        query = query.where(_once(connection, found))
    return {datetime.fromisoformat(row.hour): int(row.n) for row in connection.execute(query)}


def rows(
    connection: Connection, table: str, begins: datetime | None = None
) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
    """Names, and the rows of a span, or of the whole table."""
    found: Any = WHOLE[table] if begins is None else HOURLY[table][0]
    query = select(*found.c)
    if begins is not None:
        moment = found.c[HOURLY[table][1]]
        query = query.where(moment >= begins, moment < begins + span(table))
    if table in SUMS:
        query = query.where(_once(connection, found))
    names = [column.name for column in found.c]
    return names, [tuple(row) for row in connection.execute(query.order_by(*_order(found, table)))]


def _once(connection: Connection, found: FromClause) -> ColumnElement[bool]:
    """Each sum once: by the day, and by the hour where hours are not in their day yet."""
    return Period().covers(found.c, marks(connection), DAY_S)


def _order(found: FromClause, table: str) -> list[Any]:
    # A sum's columns begin with its span and the rest of its key.
    return list(found.c if table in SUMS else found.primary_key)


def json_columns(table: str) -> set[str]:
    """The columns that hold a dictionary."""
    found: Any = WHOLE[table] if table in WHOLE else HOURLY[table][0]
    return {column.name for column in found.c if isinstance(column.type, JSON)}


def python_type(table: str, name: str) -> type[Any]:
    """What a column's values are in Python."""
    found: Any = WHOLE[table] if table in WHOLE else HOURLY[table][0]
    kind = found.c[name].type
    if isinstance(kind, JSON):
        return dict
    plain: type[Any] = datetime if isinstance(kind, UtcDateTime) else kind.python_type
    return plain
