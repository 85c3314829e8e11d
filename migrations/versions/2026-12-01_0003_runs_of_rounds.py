"""Runs of federated rounds, with what each round begins with; nothing has written rounds before."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables of rounds anew."""
    op.drop_table("round_participant")
    op.drop_table("round")
    _runs()
    _rounds()
    op.create_table(
        "round_lock",
        _text("name", 16),
        _text("holder"),
        _text("run_id"),
        _moment("until"),
        sa.PrimaryKeyConstraint("name", name="pk_round_lock"),
    )
    op.create_table(
        "round_schedule",
        _text("name"),
        _text("kind", 16),
        _text("timing"),
        _number("limit"),
        _facts("plan"),
        _moment("next_at", nullable=True),
        _moment("fired_at", nullable=True),
        _long("told"),
        sa.PrimaryKeyConstraint("name", name="pk_round_schedule"),
    )
    op.create_index("ix_round_schedule_next_at", "round_schedule", ["next_at"])


def downgrade() -> None:
    """Refuses: the rounds would be lost.

    Raises:
        NotImplementedError: Always; a backup is the way back.
    """
    raise NotImplementedError("restore the backup that was made before the upgrade")


def _runs() -> None:
    op.create_table(
        "round_run",
        _text("run_id"),
        _text("state", 16),
        *map(_long, ("started_by", "reason")),
        _facts("plan"),
        _text("base_version"),
        _text("head_version"),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        _facts("progress"),
        _moment("created_at"),
        _moment("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_round_run"),
    )
    op.create_index("ix_round_run_created_at", "round_run", ["created_at"])


def _rounds() -> None:
    op.create_table(
        "round",
        _text("run_id"),
        _count("number"),
        _text("outcome", 16),
        _long("reason"),
        _count("seed"),
        _facts("opening"),
        _facts("figures"),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        _moment("opened_at"),
        _moment("ended_at", nullable=True),
        _number("duration_s"),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_round"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["round_run.run_id"], name="fk_round_run_id_round_run", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "round_participant",
        _text("run_id"),
        *map(_count, ("number", "node_number")),
        _text("node_id", 63),
        _text("part", 16),
        _long("reason"),
        _count("examples"),
        *map(_number, ("weight", "loss_before", "loss_after")),
        *map(_count, ("bytes_down", "bytes_up")),
        sa.PrimaryKeyConstraint("run_id", "number", "node_number", name="pk_round_participant"),
        sa.ForeignKeyConstraint(
            ["run_id", "number"],
            ["round.run_id", "round.number"],
            name="fk_round_participant_run_id_round",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_round_participant_node_id", "round_participant", ["node_id"])


def _text(name: str, length: int = 64) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length), nullable=False)


def _long(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=False)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=False)


def _moment(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _facts(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)
