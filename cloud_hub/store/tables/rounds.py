"""Runs of federated rounds: what was asked, each round with its nodes, and who conducts now."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from cloud_hub.store.tables.base import Base


class RoundRunRow(Base):
    """Rounds in a row that train a change of one head."""

    __tablename__ = "round_run"
    __table_args__ = (Index(None, "created_at"),)

    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))  # see `store.rounds.State`
    started_by: Mapped[str] = mapped_column(Text)  # "by hand", or the schedule and its finding
    reason: Mapped[str] = mapped_column(Text)  # why it was stopped or failed
    plan: Mapped[dict[str, Any]]  # fields of `fleet.federation.plan.Plan`
    base_version: Mapped[str] = mapped_column(String(64))  # the device model whose head it is
    head_version: Mapped[str] = mapped_column(String(64))
    head: Mapped[bytes]  # npz of the head's four arrays
    progress: Mapped[dict[str, Any]]  # the phase under way, who is awaited, until when
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class RoundRow(Base):
    """A round: opened in one transaction, ended in another, together with its nodes."""

    __tablename__ = "round"

    run_id: Mapped[str] = mapped_column(
        ForeignKey("round_run.run_id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    outcome: Mapped[str] = mapped_column(String(16))  # open, kept, discarded, skipped
    reason: Mapped[str] = mapped_column(Text)
    seed: Mapped[int]  # of all that is random in it
    opening: Mapped[dict[str, Any]]  # cohort and who was set aside, until the round ends
    figures: Mapped[dict[str, Any]]  # of the validation
    content: Mapped[bytes | None]  # what the next round begins with; of the last two rounds
    opened_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    duration_s: Mapped[float]


class RoundParticipantRow(Base):
    """A node in a round, and what became of its update."""

    __tablename__ = "round_participant"
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "number"], ["round.run_id", "round.number"], ondelete="CASCADE"
        ),
        Index(None, "node_id"),
    )

    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    node_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # in the run
    node_id: Mapped[str] = mapped_column(String(63))
    part: Mapped[str] = mapped_column(String(16))  # used, refused, silent, failed, set aside
    reason: Mapped[str] = mapped_column(Text)
    examples: Mapped[int]
    weight: Mapped[float]
    loss_before: Mapped[float]
    loss_after: Mapped[float]
    bytes_down: Mapped[int]
    bytes_up: Mapped[int]


class RoundLockRow(Base):
    """Who conducts rounds, or rollouts: one process of all hubs on this database."""

    __tablename__ = "round_lock"

    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    run_id: Mapped[str] = mapped_column(String(64))
    until: Mapped[datetime]


class RoundScheduleRow(Base):
    """A job of the scheduler: when rounds are started by themselves."""

    __tablename__ = "round_schedule"
    __table_args__ = (Index(None, "next_at"),)

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))  # cron, drift, cloud or samples
    timing: Mapped[str] = mapped_column(String(64))  # a crontab line
    limit: Mapped[float]  # of the condition; 0 where there is none
    plan: Mapped[dict[str, Any]]
    next_at: Mapped[datetime | None]
    fired_at: Mapped[datetime | None]  # by one of the hubs
    told: Mapped[str] = mapped_column(Text)  # what came of the last time
