"""The tables. What a column means is said here once; `migrations/` brings a database to it."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class UtcDateTime(TypeDecorator[datetime]):
    """A moment; stored in UTC, read as an aware datetime on every database."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuses a moment without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment in the database needs its time zone")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, _: Dialect) -> datetime | None:
        """Gives SQLite's moments the zone they were stored in."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite counts rows by its INTEGER only, which has 64 bits too.
_RowNumber = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Names every constraint, so that a migration can name it too."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        datetime: UtcDateTime(),
        float: Double(),
        int: BigInteger(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(),
    }


class NodeRow(Base):
    """A node as it was last heard of; empty strings where only records came so far."""

    __tablename__ = "node"

    node_id: Mapped[str] = mapped_column(String(63), primary_key=True)
    boot_id: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))  # ready, stopped, lost, or empty
    agent_version: Mapped[str] = mapped_column(String(64))
    device_version: Mapped[str] = mapped_column(String(64))
    family: Mapped[str] = mapped_column(String(64))
    facts: Mapped[dict[str, Any]]
    pictures: Mapped[int]
    outbox_records: Mapped[int]
    first_seen_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]


class NodeStateRow(Base):
    """A change of a node's state or boot."""

    __tablename__ = "node_state"
    __table_args__ = (Index(None, "node_id", "received_at"),)

    id: Mapped[int] = mapped_column(_RowNumber, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("node.node_id", ondelete="CASCADE"))
    boot_id: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    at: Mapped[float]  # device clock, seconds since the epoch
    received_at: Mapped[datetime]


class GenerationRow(Base):
    """One picture: the fields of `GenerationRecord`, and who reported it when."""

    __tablename__ = "generation"
    __table_args__ = (
        UniqueConstraint("node_id", "boot_id", "sequence"),
        Index(None, "node_id", "received_at"),
        Index(None, "received_at"),
    )

    id: Mapped[int] = mapped_column(_RowNumber, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("node.node_id", ondelete="CASCADE"))
    boot_id: Mapped[str] = mapped_column(String(64))
    sequence: Mapped[int]
    received_at: Mapped[datetime]  # hub clock; order and retention go by it
    created_at: Mapped[float]  # device clock, seconds since the epoch
    generation_id: Mapped[str] = mapped_column(String(64))
    agent_version: Mapped[str] = mapped_column(String(64))
    device_version: Mapped[str] = mapped_column(String(64))
    cloud_version: Mapped[str] = mapped_column(String(64))
    caption_hash: Mapped[str] = mapped_column(String(64))
    caption: Mapped[str] = mapped_column(Text)
    seed: Mapped[int]
    temperature: Mapped[float]
    top_k: Mapped[int]
    guidance: Mapped[float]
    policy: Mapped[str] = mapped_column(String(64))
    threshold: Mapped[float]
    tokens: Mapped[int]
    prefix: Mapped[int]
    local: Mapped[int]
    verified: Mapped[int]
    corrected: Mapped[int]
    unverified: Mapped[int]
    wasted: Mapped[int]
    forwards: Mapped[int]
    round_trips: Mapped[int]
    retries: Mapped[int]
    bytes_up: Mapped[int]
    bytes_down: Mapped[int]
    duration_s: Mapped[float]
    device_s: Mapped[float]
    wait_s: Mapped[float]
    queue_s: Mapped[float]
    forward_s: Mapped[float]
    fallback: Mapped[str] = mapped_column(String(16))
    scores: Mapped[bytes]  # arrays as in `fleet/protocol/arrays.py`
    decisions: Mapped[bytes]
    confidences: Mapped[bytes]


class RejectedRecordRow(Base):
    """A record that could not be stored, with the reason; kept for whoever repairs the sender."""

    __tablename__ = "rejected_record"
    __table_args__ = (UniqueConstraint("node_id", "payload_hash"),)

    id: Mapped[int] = mapped_column(_RowNumber, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(String(63))
    received_at: Mapped[datetime]
    reason: Mapped[str] = mapped_column(Text)
    payload_hash: Mapped[str] = mapped_column(String(64))  # sha256
    payload: Mapped[bytes]
