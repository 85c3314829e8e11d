"""Periods are made of months, days and hours that hold each moment once."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

import pytest

from cloud_hub.store.periods import (
    DAY_S,
    FIRST,
    HOUR_S,
    LAST,
    MONTH_S,
    Marks,
    Period,
    begin_of,
    end_of,
)

NOW = datetime(2026, 12, 20, 8, 30, tzinfo=UTC)
MARKS = Marks(
    hours=datetime(2026, 12, 20, 8, tzinfo=UTC),
    days=datetime(2026, 12, 20, 8, tzinfo=UTC),
    months=datetime(2026, 12, 20, tzinfo=UTC),
)


def at(day: int, hour: int = 0, month: int = 12) -> datetime:
    return datetime(2026, month, day, hour, tzinfo=UTC)


def test_ever_is_months_and_what_they_do_not_hold_yet() -> None:
    assert Period().spans(MARKS) == [
        (MONTH_S, FIRST, at(20)),
        (DAY_S, at(20), at(20, 8)),
        (HOUR_S, at(20, 8), LAST),
    ]
    assert Period().spans(MARKS, DAY_S) == [(DAY_S, FIRST, at(20, 8)), (HOUR_S, at(20, 8), LAST)]


def test_before_anything_was_added_up_there_are_hours() -> None:
    assert Period().spans(Marks(FIRST, FIRST, FIRST)) == [(HOUR_S, FIRST, LAST)]


def test_a_period_that_began_days_ago_begins_with_its_day() -> None:
    assert Period(at(5, 13)).spans(MARKS)[0] == (DAY_S, at(5), at(20, 8))
    assert Period(at(19, 13)).spans(MARKS) == [
        (HOUR_S, at(19, 13), at(20)),
        (DAY_S, at(20), at(20, 8)),
        (HOUR_S, at(20, 8), LAST),
    ]
    assert Period(at(15, month=10), at(3)).spans(MARKS) == [
        (DAY_S, at(15, month=10), at(1, month=11)),
        (MONTH_S, at(1, month=11), at(1)),
        (DAY_S, at(1), at(3)),
    ]


@pytest.mark.parametrize("longest", [DAY_S, MONTH_S])
@pytest.mark.parametrize("seed", range(40))
def test_every_moment_lies_in_one_span(seed: int, longest: int) -> None:
    random = Random(seed)
    days = begin_of(NOW - timedelta(hours=random.randrange(60)), HOUR_S)
    marks = Marks(days, days, begin_of(days - timedelta(days=random.randrange(3)), DAY_S))
    since = NOW - timedelta(hours=random.randrange(1, 24 * 100))
    until = since + timedelta(hours=random.randrange(24 * 60)) if random.random() < 0.5 else None

    found = Period(since, until).spans(marks, longest)

    assert all(one[2] == two[1] for one, two in pairwise(found))
    if found:
        assert found[0][1] <= since < found[0][1] + timedelta(days=1)
        assert until is None or found[-1][2] <= until
    for length, begins, ends in found:
        assert begin_of(begins, length) == begins
        held = {HOUR_S: LAST, DAY_S: marks.days, MONTH_S: marks.months}[length]
        assert ends in (LAST, held) or begin_of(ends, length) == ends
        assert ends <= held


def test_months_begin_on_their_first() -> None:
    assert begin_of(at(20, 8), MONTH_S) == at(1)
    assert begin_of(at(20, 8), MONTH_S, up=True) == datetime(2027, 1, 1, tzinfo=UTC)
    assert begin_of(at(1), MONTH_S, up=True) == at(1)
    assert end_of(datetime(2027, 2, 1, tzinfo=UTC), MONTH_S) == datetime(2027, 3, 1, tzinfo=UTC)
