"""Pictures, what the cloud found when it checked them, their tokens one by one, and what is none.

PostgreSQL keeps `generation` in one partition a day (UTC) of `received_at`.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, SmallInteger, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from cloud_hub.store.tables.base import COUNT, ROW_NUMBER, Base, Deflated, Hex, Sparse
from cloud_hub.store.tables.counted import Counted


class GenerationRow(Counted, Base):
    """One picture: the fields of `GenerationRecord`, and who reported it when.

    `boot` says which records are there: a key over all partitions cannot. Nobody looks for a row
    by its number, so PostgreSQL has no key of it.
    """

    __tablename__ = "generation"
    __table_args__ = (
        Index(None, "node_id"),  # for a node that is to be forgotten
        Index(None, "received_at"),
        Index(None, "generation_id", postgresql_using="hash"),  # whole ids are looked for
        {"postgresql_partition_by": "RANGE (received_at)"},
    )

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("node.node_id", ondelete="CASCADE"))
    boot_id: Mapped[str] = mapped_column(Hex)
    sequence: Mapped[int]
    received_at: Mapped[datetime]  # hub clock; order and retention go by it
    created_at: Mapped[float]  # device clock, seconds since the epoch
    generation_id: Mapped[str] = mapped_column(Hex)
    agent_version: Mapped[str] = mapped_column(String(64))
    device_version: Mapped[str] = mapped_column(String(64))
    cloud_version: Mapped[str] = mapped_column(String(64))
    caption_hash: Mapped[str] = mapped_column(Hex)  # sha256
    caption: Mapped[str] = mapped_column(Text)
    seed: Mapped[int]
    temperature: Mapped[float]
    top_k: Mapped[int]
    guidance: Mapped[float]
    policy: Mapped[str] = mapped_column(String(64))
    threshold: Mapped[float]
    fallback: Mapped[str] = mapped_column(String(16))
    repairs: Mapped[str] = mapped_column(String(64))  # the picture that this one corrects, or empty
    scores: Mapped[bytes] = mapped_column(Deflated)  # arrays as in `fleet/protocol/arrays.py`
    decisions: Mapped[bytes] = mapped_column(Deflated)
    confidences: Mapped[bytes] = mapped_column(Sparse)
    tokens: Mapped[int] = mapped_column(COUNT)
    prefix: Mapped[int] = mapped_column(COUNT)
    local: Mapped[int] = mapped_column(COUNT)
    verified: Mapped[int] = mapped_column(COUNT)
    corrected: Mapped[int] = mapped_column(COUNT)
    unverified: Mapped[int] = mapped_column(COUNT)
    wasted: Mapped[int] = mapped_column(COUNT)
    forwards: Mapped[int] = mapped_column(COUNT)
    round_trips: Mapped[int] = mapped_column(COUNT)
    retries: Mapped[int] = mapped_column(COUNT)
    bytes_up: Mapped[int] = mapped_column(COUNT)
    bytes_down: Mapped[int] = mapped_column(COUNT)


class SpotCheckRow(Base):
    """What the cloud's law says of drafts of one picture, for a share of its positions.

    The device's scores and versions are the record's; they meet in the sums once it is there.
    """

    __tablename__ = "spot_check"
    __table_args__ = (Index(None, "generation_id"), Index(None, "checked_at"))

    check_id: Mapped[str] = mapped_column(String(64), primary_key=True)  # made by the worker
    node_id: Mapped[str] = mapped_column(String(63))
    generation_id: Mapped[str] = mapped_column(Hex)
    cloud_version: Mapped[str] = mapped_column(String(64))
    checked_at: Mapped[datetime]  # hub clock
    is_counted: Mapped[bool]  # whether `check_sum` holds it
    positions: Mapped[bytes]  # u16 [n], little-endian
    local: Mapped[bytes]  # u8 [n]: 1 accepted on the device, 0 judged by the cloud
    matches: Mapped[bytes]  # u8 [n]: 1 where the cloud draws the same token from the shared noise
    harms: Mapped[bytes]  # f2 [n]: squared distance of the two draws' code vectors, 0 to 4
    probabilities: Mapped[bytes]  # f2 [n]: of the device's token under the cloud's sampled law


class TokenRow(Base):
    """One token, of the pictures that are kept in detail; short-lived."""

    __tablename__ = "token"
    __table_args__ = (Index(None, "received_at"),)

    node_id: Mapped[str] = mapped_column(String(63), primary_key=True)
    generation_id: Mapped[str] = mapped_column(Hex, primary_key=True)
    position: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    received_at: Mapped[datetime]
    score: Mapped[float]
    decision: Mapped[int] = mapped_column(SmallInteger)  # as in `decisions`
    confidence: Mapped[float]


class RejectedRecordRow(Base):
    """A record that could not be stored, with the reason; kept for whoever repairs the sender."""

    __tablename__ = "rejected_record"
    __table_args__ = (UniqueConstraint("node_id", "payload_hash"),)

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(String(63))
    received_at: Mapped[datetime]
    reason: Mapped[str] = mapped_column(Text)
    payload_hash: Mapped[str] = mapped_column(String(64))  # sha256
    payload: Mapped[bytes]
