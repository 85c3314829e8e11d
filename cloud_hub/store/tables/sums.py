"""Sums over pictures and checks, each for a node, its versions and policy, and a span of hub time.

They are written in the transaction of what they count. A span is an hour, a day or a month; days
and months are made of hours that are over, and stand beside them (`store/adding_up.py`). Who and
when stand once, in `span`; rows of the sums name it by number, since there are many of them.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, SmallInteger, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from cloud_hub.store.tables.base import COUNT, ROW_NUMBER, Base
from cloud_hub.store.tables.counted import Counted

# SQLite keeps such rows in the tree of their key, not beside it.
_BY_KEY: dict[str, Any] = {"sqlite_with_rowid": False}
# Rows that every batch adds to: PostgreSQL writes them anew each time, best into the same page.
_GROWS: dict[str, Any] = _BY_KEY | {"postgresql_with": {"fillfactor": 50}}


class SpanRow(Base):
    """A node, its versions and policy, in an hour, a day or a month."""

    __tablename__ = "span"
    __table_args__ = (
        UniqueConstraint(
            "starts_at",
            "span_s",
            "node_id",
            "device_version",
            "cloud_version",
            "policy",
            name="uq_span",
        ),
        Index(None, "node_id"),
    )

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True, autoincrement=True)
    starts_at: Mapped[datetime]
    span_s: Mapped[int]  # 3600, 86400, or 2592000 for any month
    node_id: Mapped[str] = mapped_column(String(63))
    device_version: Mapped[str] = mapped_column(String(64))
    cloud_version: Mapped[str] = mapped_column(String(64))
    policy: Mapped[str] = mapped_column(String(64))


class SumMarkRow(Base):
    """How far spans of a length have come; `store/periods.py: Marks`."""

    __tablename__ = "sum_mark"

    span_s: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    until: Mapped[datetime]


class _OfSpan:
    """The key that all sums share."""

    span_id: Mapped[int] = mapped_column(
        ROW_NUMBER, ForeignKey("span.id", ondelete="CASCADE"), primary_key=True, sort_order=-1
    )


class SumRow(_OfSpan, Counted, Base):
    """Pictures, and the sums of their columns."""

    __tablename__ = "picture_sum"
    __table_args__ = _GROWS

    pictures: Mapped[int]
    calls: Mapped[int]  # pictures that the cloud took part in
    fallbacks: Mapped[int]  # pictures with a fallback


class HistogramRow(_OfSpan, Base):
    """How many pictures had each metric's value in a bucket; `fleet/buckets.py` says which value.

    Metrics share a row, since their values share buckets. A row of its own for each took three
    times as much. Whoever asks gets rows of one metric all the same: `store/histograms.py`.
    """

    __tablename__ = "histogram"
    __table_args__ = _BY_KEY

    bucket: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    duration_s: Mapped[int] = mapped_column(COUNT)
    device_s: Mapped[int] = mapped_column(COUNT)
    wait_s: Mapped[int] = mapped_column(COUNT)
    queue_s: Mapped[int] = mapped_column(COUNT)
    forward_s: Mapped[int] = mapped_column(COUNT)
    bytes: Mapped[int] = mapped_column(COUNT)  # up and down


class ScoreSumRow(_OfSpan, Base):
    """What became of the tokens whose score is in a bin (score code // 4)."""

    __tablename__ = "score_sum"
    __table_args__ = _GROWS

    score_bin: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    local: Mapped[int]
    verified: Mapped[int]
    corrected: Mapped[int]
    unverified: Mapped[int]


class CheckSumRow(_OfSpan, Base):
    """Locally accepted tokens that were checked, by region of the picture and score bin."""

    __tablename__ = "check_sum"
    __table_args__ = _GROWS

    region: Mapped[int] = mapped_column(SmallInteger, primary_key=True)  # 4 x 4, row by row
    score_bin: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    checked: Mapped[int]
    mismatched: Mapped[int]  # the cloud draws another token from the same noise
    harm: Mapped[float]  # sum
    probability: Mapped[float]  # sum
