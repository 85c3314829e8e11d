"""Sums over pictures and checks, each for a node, its versions and policy, and a span of hub time.

They are written in the transaction of what they count. A span is an hour; past hours are merged
into days later, so that whoever adds up rows since some moment need not know which they are.
"""

from datetime import datetime

from sqlalchemy import Index, SmallInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from cloud_hub.store.tables.base import Base
from cloud_hub.store.tables.counted import Counted


class _Span:
    """The key that all sums share."""

    starts_at: Mapped[datetime] = mapped_column(primary_key=True)
    span_s: Mapped[int] = mapped_column(primary_key=True)  # 3600 or 86400
    node_id: Mapped[str] = mapped_column(String(63), primary_key=True)
    device_version: Mapped[str] = mapped_column(String(64), primary_key=True)
    cloud_version: Mapped[str] = mapped_column(String(64), primary_key=True)
    policy: Mapped[str] = mapped_column(String(64), primary_key=True)


class SumRow(_Span, Counted, Base):
    """Pictures, and the sums of their columns."""

    __tablename__ = "picture_sum"

    pictures: Mapped[int]
    calls: Mapped[int]  # pictures that the cloud took part in
    fallbacks: Mapped[int]  # pictures with a fallback


class HistogramRow(_Span, Base):
    """How many pictures had a metric's value in a bucket; `fleet/buckets.py` says which value."""

    __tablename__ = "histogram"
    __table_args__ = (Index(None, "metric", "starts_at"),)

    metric: Mapped[str] = mapped_column(String(16), primary_key=True)
    bucket: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    pictures: Mapped[int]


class ScoreSumRow(_Span, Base):
    """What became of the tokens whose score is in a bin (score code // 4)."""

    __tablename__ = "score_sum"

    score_bin: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    local: Mapped[int]
    verified: Mapped[int]
    corrected: Mapped[int]
    unverified: Mapped[int]


class CheckSumRow(_Span, Base):
    """Locally accepted tokens that were checked, by region of the picture and score bin."""

    __tablename__ = "check_sum"

    region: Mapped[int] = mapped_column(SmallInteger, primary_key=True)  # 4 x 4, row by row
    score_bin: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    checked: Mapped[int]
    mismatched: Mapped[int]  # the cloud draws another token from the same noise
    harm: Mapped[float]  # sum
    probability: Mapped[float]  # sum
