"""When rounds start by themselves: the scheduler's jobs as rows, and what their conditions read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, delete, func, or_, select, update

from cloud_hub.store.database import is_inserted
from cloud_hub.store.groups import grouped
from cloud_hub.store.periods import Period
from cloud_hub.store.tables import RoundRunRow, RoundScheduleRow, SumRow
from fleet.errors import InvalidInputError

Kind = Literal["cron", "drift", "cloud", "samples"]

_S = RoundScheduleRow


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job: at the times of a crontab line (UTC), if its condition holds, a run is begun.

    Attributes:
        kind: "cron" has no condition; "drift": the acceptance of the last day is `limit` below
            that of the week before; "cloud": the hub serves a cloud model that no run had;
            "samples": devices were told about `limit` laws since the last run began.
        plan: Fields of the plan that are not its defaults.
        told: What came of the last time.
    """

    name: str
    kind: Kind
    timing: str
    limit: float
    plan: Mapping[str, Any]
    next_at: datetime | None = None
    fired_at: datetime | None = None
    told: str = ""


def add(connection: Connection, schedule: Schedule) -> None:
    """Adds a schedule.

    Raises:
        InvalidInputError: There is one of that name.
    """
    if not is_inserted(connection, _S, asdict(schedule)):
        raise InvalidInputError(f"there is a schedule {schedule.name!r} already: remove it first")


def remove(connection: Connection, name: str) -> None:
    """Removes a schedule.

    Raises:
        InvalidInputError: There is none of that name.
    """
    if not connection.execute(delete(_S).where(_S.name == name)).rowcount:
        raise InvalidInputError(f"there is no schedule {name!r}")


def schedules(
    connection: Connection, *, due: datetime | None = None, name: str | None = None
) -> list[Schedule]:
    """All schedules by their next time, or those due by now, or one of them."""
    columns = (getattr(_S, name) for name in Schedule.__slots__)
    statement = select(*columns).order_by(_S.next_at.is_(None), _S.next_at, _S.name)
    if due is not None:
        statement = statement.where(_S.next_at <= due)
    if name is not None:
        statement = statement.where(_S.name == name)
    return [Schedule(*row) for row in connection.execute(statement)]


def next_time(connection: Connection) -> datetime | None:
    """When the next schedule is due."""
    found: datetime | None = connection.execute(select(func.min(_S.next_at))).scalar()
    return found


def set_next(connection: Connection, name: str, at: datetime | None) -> None:
    """Says when a schedule is due next."""
    connection.execute(update(_S).where(_S.name == name).values(next_at=at))


def claim(connection: Connection, name: str, now: datetime, apart: timedelta) -> bool:
    """Whether this process fires a schedule; of several hubs that see it due, one does."""
    free = or_(_S.fired_at.is_(None), _S.fired_at <= now - apart)
    statement = update(_S).where(_S.name == name, free).values(fired_at=now)
    return connection.execute(statement).rowcount == 1


def tell(connection: Connection, name: str, what: str) -> None:
    """Notes what came of a schedule."""
    connection.execute(update(_S).where(_S.name == name).values(told=what))


# ── What conditions read ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Judged:
    """Tokens that the cloud judged in a span, and of these the corrected ones."""

    judged: int
    corrected: int

    @property
    def acceptance(self) -> float:
        """The share that stood."""
        return 1 - self.corrected / self.judged


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions of schedules look at."""

    last_day: Judged
    week_before: Judged
    judged_since_run: int  # since the last run began, or ever
    clouds: frozenset[str]  # whose laws runs have trained on, as their plans name them


def facts(connection: Connection, now: datetime) -> Facts:
    """The facts of now, from the sums by hours and days."""
    day_ago = now - timedelta(days=1)
    run_at = connection.execute(select(func.max(RoundRunRow.created_at))).scalar()
    plans = connection.execute(select(RoundRunRow.plan).where(RoundRunRow.state != "failed"))
    return Facts(
        last_day=_judged(connection, day_ago, now),
        week_before=_judged(connection, day_ago - timedelta(days=7), day_ago),
        judged_since_run=_judged(connection, run_at, now).judged,
        clouds=frozenset(str(plan.get("cloud", "")) for plan in plans.scalars()),
    )


def _judged(connection: Connection, since: datetime | None, until: datetime) -> Judged:
    (found,) = grouped(connection, SumRow, [], Period(since, until), ("verified", "corrected"))
    return Judged(int(found[0]["verified"]), int(found[0]["corrected"]))
