"""What the fleet learned and decided: thresholds, model versions, rollouts, the audit."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from cloud_hub.store.tables.base import ROW_NUMBER, Base


class ThresholdRow(Base):
    """A threshold from when it was set until another took its place."""

    __tablename__ = "threshold"
    __table_args__ = (Index(None, "node_id", "set_at"),)

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True, autoincrement=True)
    node_id: Mapped[str] = mapped_column(String(63))  # empty: the fleet
    device_version: Mapped[str] = mapped_column(String(64))  # empty: every version
    policy: Mapped[str] = mapped_column(String(64))  # the score's name
    threshold: Mapped[float]
    rule: Mapped[str] = mapped_column(String(64))  # how it was found: budget, risk, by hand
    basis: Mapped[dict[str, Any]]  # numbers that it rests on: risk, confidence, tokens, period
    set_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class ModelVersionRow(Base):
    """A model that devices or the cloud ran, run or may run."""

    __tablename__ = "model_version"

    version: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))  # device or cloud
    family: Mapped[str] = mapped_column(String(64))
    parent: Mapped[str] = mapped_column(String(64))  # the version it was trained from, or empty
    round_id: Mapped[str] = mapped_column(String(64))  # the run of rounds that made it, or empty
    made_at: Mapped[datetime]
    facts: Mapped[dict[str, Any]]  # sizes, hashes, figures of its evaluation


class RolloutRow(Base):
    """A model version on its way to devices."""

    __tablename__ = "rollout"

    rollout_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    version: Mapped[str] = mapped_column(String(64))
    previous: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))  # see `store.rollouts.State`
    reason: Mapped[str] = mapped_column(Text)
    plan: Mapped[dict[str, Any]]  # the wish, and which version each canary had before
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class RolloutNodeRow(Base):
    """Where a node stands in a rollout."""

    __tablename__ = "rollout_node"

    rollout_id: Mapped[str] = mapped_column(
        ForeignKey("rollout.rollout_id", ondelete="CASCADE"), primary_key=True
    )
    node_id: Mapped[str] = mapped_column(String(63), primary_key=True)
    stage: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))  # waiting, sent, active, failed, rolled_back
    reason: Mapped[str] = mapped_column(Text)
    changed_at: Mapped[datetime]


class AuditRow(Base):
    """Something that a person or the hub did to the fleet or its data; rows are only added."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "at"),)

    id: Mapped[int] = mapped_column(ROW_NUMBER, primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(128))
    detail: Mapped[dict[str, Any]]
