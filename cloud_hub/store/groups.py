"""Sums of a period by groups: first the spans that make it up, then their rows, by number.

Spans are few and have the names; rows of sums are many. So spans are put into groups here, and the
database adds rows up by the number of their span's group, which takes it a fraction of the time
that a join of names does.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Connection,
    Double,
    FromClause,
    Select,
    bindparam,
    cast,
    func,
    select,
)

from cloud_hub.store.periods import DAY_S, MONTH_S, Period, marks
from cloud_hub.store.sums import keys
from cloud_hub.store.tables import Base, HistogramRow, SpanRow
from fleet.errors import InvalidInputError

BY = ("node", "version", "cloud", "policy", "day")

_OF_SPAN = {
    "node": SpanRow.node_id,
    "version": SpanRow.device_version,
    "cloud": SpanRow.cloud_version,
    "policy": SpanRow.policy,
    "day": SpanRow.starts_at,
}
_OF_ROW = {"score": "score_bin", "region": "region", "bucket": "bucket"}

Group = tuple[Any, ...]
Counts = NDArray[np.int64]


def grouped(
    connection: Connection,
    table: type[Base],
    by: Sequence[str],
    period: Period,
    names: Sequence[str],
) -> list[tuple[Any, ...]]:
    """The groups in order, each with the sums of its rows, by column, at the end.

    Raises:
        InvalidInputError: A group is not one that the table has.
    """
    found = [
        (*group, dict(zip(names, map(float, sums), strict=True)))
        for group, sums in group_rows(connection, table, by, period, names)
    ]
    return found or ([] if by else [(dict.fromkeys(names, 0.0),)])


def group_rows(
    connection: Connection,
    table: type[Base],
    by: Sequence[str],
    period: Period,
    names: Sequence[str],
) -> list[tuple[Group, Group]]:
    """As `grouped`, but a pair of tuples a group.

    Raises:
        InvalidInputError: A group is not one that the table has.
    """
    check_groups(by, (*BY, *(name for name, column in _OF_ROW.items() if column in keys(table))))
    of_span, of_row = (tuple(name for name in by if name in known) for known in (_OF_SPAN, _OF_ROW))
    groups, places = _placed(connection, of_span, period)
    cut = 1 + len(of_row)
    rows = [
        ((*groups[row[0]], *row[1:cut]), row[cut:])
        for row in _sums(connection, table, of_row, names, places)
    ]
    order = [(*of_span, *of_row).index(name) for name in by]
    if order == sorted(order):
        return rows
    return sorted((tuple(group[place] for place in order), sums) for group, sums in rows)


def group_buckets(
    connection: Connection, by: Sequence[str], period: Period, metrics: Sequence[str]
) -> Iterator[tuple[Group, Counts, Counts]]:
    """The groups of histograms in order: each with buckets [n], rising, and counts [n, metrics].

    Raises:
        InvalidInputError: A group is not one of `BY`.
    """
    check_groups(by, BY)
    groups, places = _placed(connection, by, period)
    found = _sums(connection, HistogramRow, ("bucket",), metrics, places)
    rows = np.array(found, np.int64).reshape(-1, 2 + len(metrics))  # there are tens of thousands
    ends = np.searchsorted(rows[:, 0], np.arange(len(groups) + 1))
    for group, begin, end in zip(groups, ends, ends[1:], strict=False):
        if begin < end:
            yield group, rows[begin:end, 1], rows[begin:end, 2:]


def check_groups(by: Sequence[str], allowed: Sequence[str]) -> None:
    """Refuses names that are not among the allowed ones.

    Raises:
        InvalidInputError: One is not.
    """
    unknown = [name for name in by if name not in allowed]
    if unknown:
        raise InvalidInputError(
            f"--by {unknown[0]!r} is unknown: take some of {', '.join(allowed)}"
        )


def _placed(
    connection: Connection, by: Sequence[str], period: Period
) -> tuple[list[Group], dict[int, int]]:
    """The groups in order, and the number of its group for each span of the period."""
    spans = _spans(connection, by, period)
    groups = sorted(set(spans.values()))
    numbers = {group: number for number, group in enumerate(groups)}
    return groups, {span: numbers[group] for span, group in spans.items()}


def _spans(connection: Connection, by: Sequence[str], period: Period) -> dict[int, Group]:
    """The spans that make up the period, each with its group."""
    longest = DAY_S if "day" in by else MONTH_S
    inside = period.covers(SpanRow, marks(connection), longest)
    rows = connection.execute(select(SpanRow.id, *(_OF_SPAN[name] for name in by)).where(inside))
    if "day" not in by:
        return {number: tuple(group) for number, *group in rows}
    day = 1 + by.index("day")
    return {
        row[0]: (*row[1:day], f"{row[day]:%Y-%m-%d}", *row[day + 1 :]) for row in map(tuple, rows)
    }


def _sums(
    connection: Connection,
    table: type[Base],
    of_row: tuple[str, ...],
    names: Sequence[str],
    places: dict[int, int],
) -> Sequence[Any]:
    """Rows (number of the group, keys, sums)."""
    dialect = connection.dialect.name
    given: dict[str, Any] = {"spans": list(places), "numbers": list(places.values())}
    if dialect == "sqlite":
        given = {"pairs": list(places.items())}
    rows = connection.execute(_query(dialect, table, of_row, tuple(names)), given)
    return rows.cursor.fetchall() if rows.cursor is not None else rows.all()  # plain tuples


@cache
def _query(
    dialect: str, table: type[Base], of_row: tuple[str, ...], names: tuple[str, ...]
) -> Select[Any]:
    there, place = table.__table__.c, _places(dialect)
    groups = [place.c.number, *(there[_OF_ROW[name]] for name in of_row)]
    joined = place.join(table.__table__, there.span_id == place.c.span)
    query = select(*groups, *(_sum(there[name]) for name in names)).select_from(joined)
    return query.group_by(*groups).order_by(*groups)


def _sum(column: Any) -> Any:
    """PostgreSQL's sum of a bigint is a numeric: slow, and a Decimal in Python."""
    return func.sum(cast(column, Double) if isinstance(column.type, BigInteger) else column)


def _places(dialect: str) -> FromClause:
    """The spans, each with the number of its group, as the statement is given them."""
    if dialect != "sqlite":
        arrays = (bindparam(name, type_=ARRAY(BigInteger)) for name in ("spans", "numbers"))
        return func.unnest(*arrays).table_valued("span", "number").render_derived()
    pair = func.json_each(bindparam("pairs", type_=JSON)).table_valued("value").c.value
    columns = (func.json_extract(pair, f"$[{place}]") for place in (0, 1))
    return select(
        *(c.label(n) for c, n in zip(columns, ("span", "number"), strict=True))
    ).subquery()
