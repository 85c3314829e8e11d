"""Periods of hub time, and the spans of sums that add up to one.

An hour's sums are added into their day, and a day's into their month, when they are over; the
shorter spans stay beside the longer ones for a while. So whoever asks about a period takes the
longest spans that lie in it, and shorter ones at its edges and for what is not added up yet.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, or_, select

from cloud_hub.store.tables import SumMarkRow

HOUR_S, DAY_S = 3600, 86_400
MONTH_S = 30 * DAY_S  # of a calendar month, whichever its days
BY_THE_HOUR = timedelta(days=2)  # a period that begins longer ago begins with a day
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

Range = tuple[int, datetime, datetime]  # length of spans, and from when and before when they begin


@dataclass(frozen=True, slots=True)
class Marks:
    """How far sums have come: months <= days <= hours.

    Attributes:
        hours: Nothing is added any more to the hours before it.
        days: The hours before it are in days.
        months: The days before it are in months.
    """

    hours: datetime
    days: datetime
    months: datetime


def marks(connection: Connection, *, locked: bool = False) -> Marks:
    """How far sums have come; `locked`: whoever asks for them locked waits for this one's end."""
    # In one order: two that lock the same rows in different ones would wait for each other.
    query = select(SumMarkRow.span_s, SumMarkRow.until).order_by(SumMarkRow.span_s)
    rows = connection.execute(query.with_for_update() if locked else query)
    found = {row.span_s: row.until for row in rows}
    return Marks(found[HOUR_S], found[DAY_S], found[MONTH_S])


@dataclass(frozen=True, slots=True)
class Period:
    """From when on, and before when; None is ever.

    Both are cut down to their hour, and to their day where that is more than `BY_THE_HOUR` before
    what days hold.
    """

    since: datetime | None = None
    until: datetime | None = None

    def spans(self, marks: Marks, longest: int = MONTH_S) -> list[Range]:
        """The fewest spans, of at most the length `longest`, that hold the period's sums once."""
        begins, ends = (_cut(each, marks) for each in (self.since or FIRST, self.until or LAST))
        first_day, first_month = (
            begin_of(begins, DAY_S, up=True),
            begin_of(begins, MONTH_S, up=True),
        )
        last_day = min(begin_of(ends, DAY_S), marks.days)
        last_month = min(begin_of(ends, MONTH_S), marks.months)
        if first_day >= last_day:
            return [(HOUR_S, begins, ends)]
        if longest < MONTH_S or first_month >= last_month:
            first_month = last_month = first_day
        ranges = [
            (HOUR_S, begins, first_day),
            (DAY_S, first_day, first_month),
            (MONTH_S, first_month, last_month),
            (DAY_S, last_month, last_day),
            (HOUR_S, last_day, ends),
        ]
        return [each for each in ranges if each[1] < each[2]]

    def covers(self, there: Any, marks: Marks, longest: int = MONTH_S) -> ColumnElement[bool]:
        """The rows of `spans`, by columns `span_s` and `starts_at`."""
        return or_(
            *(
                and_(there.span_s == length, there.starts_at >= begins, there.starts_at < ends)
                for length, begins, ends in self.spans(marks, longest)
            )
        )


def begin_of(moment: datetime, span_s: int, *, up: bool = False) -> datetime:
    """When the hour, day or month (UTC) begins that a moment lies in; `up`: or the next one."""
    moment = moment.astimezone(UTC)
    begin = moment.replace(minute=0, second=0, microsecond=0)
    if span_s > HOUR_S:
        begin = begin.replace(hour=0)
    if span_s > DAY_S:
        begin = begin.replace(day=1)
    return end_of(begin, span_s) if up and begin < moment else begin


def end_of(begin: datetime, span_s: int) -> datetime:
    """When the span ends that begins then."""
    if span_s <= DAY_S:
        return begin + timedelta(seconds=span_s)
    return (begin + timedelta(days=31)).replace(day=1)


def _cut(moment: datetime, marks: Marks) -> datetime:
    is_old = moment < marks.days - BY_THE_HOUR if marks.days > FIRST else False
    return begin_of(moment, DAY_S if is_old else HOUR_S)
