"""Days and months of sums stand beside their hours; marks say how far they have come."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_HOUR_S, _DAY_S, _MONTH_S = 3600, 86_400, 2_592_000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)

_SPAN = sa.table("span", sa.column("span_s"), sa.column("starts_at", sa.DateTime(timezone=True)))


def upgrade() -> None:
    """Makes the marks. The next clean-up adds the hours that are there into days, and months."""
    made = op.create_table(
        "sum_mark",
        sa.Column("span_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("span_s", name="pk_sum_mark"),
    )
    days = _days_until()
    until = {_HOUR_S: days, _DAY_S: days, _MONTH_S: _NEVER}
    zoned = op.get_bind().dialect.name == "postgresql"
    rows = [
        {"span_s": length, "until": moment if zoned else moment.replace(tzinfo=None)}
        for length, moment in until.items()
    ]
    op.bulk_insert(made, rows)


def downgrade() -> None:
    """Refuses: an earlier release would count days and months twice.

    Raises:
        NotImplementedError: Always; a backup is the way back.
    """
    raise NotImplementedError("restore the backup that was made before the upgrade")


def _days_until() -> datetime:
    """Until when days hold what hours held: until now those were merged, oldest first."""
    last_day, first_hour = (
        op.get_bind().execute(sa.select(which).where(_SPAN.c.span_s == length)).scalar()
        for length, which in (
            (_DAY_S, sa.func.max(_SPAN.c.starts_at)),
            (_HOUR_S, sa.func.min(_SPAN.c.starts_at)),
        )
    )
    if last_day is None:
        return _NEVER
    until = _utc(last_day) + timedelta(days=1)
    if first_hour is None:
        return until
    # A merge that was killed left hours of some nodes of a day whose others are merged.
    return min(until, _utc(first_hour).replace(hour=0))


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
