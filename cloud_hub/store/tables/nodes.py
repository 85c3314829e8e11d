"""Nodes, the history of their states, and which records of a boot are there."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from cloud_hub.store.tables.base import ROW_NUMBER, Base


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

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("node.node_id", ondelete="CASCADE"))
    boot_id: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    at: Mapped[float]  # device clock, seconds since the epoch
    received_at: Mapped[datetime]


class BootRow(Base):
    """A node's boot, and the sequence numbers of its records that are stored or set aside.

    It outlives the pictures, so that a record that comes again is known however late it comes.
    """

    __tablename__ = "boot"

    node_id: Mapped[str] = mapped_column(String(63), primary_key=True)
    boot_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    seen: Mapped[bytes]  # i64 pairs [n, 2], little-endian: first and last of each unbroken run
    first_seen_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
