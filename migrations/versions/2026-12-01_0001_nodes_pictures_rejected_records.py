"""Nodes with their states, one row a picture, and records that could not be stored."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the first tables."""
    _nodes()
    _pictures()
    op.create_table(
        "rejected_record",
        _row_number(),
        sa.Column("node_id", sa.String(63), nullable=False),
        _moment("received_at"),
        sa.Column("reason", sa.Text(), nullable=False),
        _name("payload_hash"),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rejected_record"),
        sa.UniqueConstraint(
            "node_id", "payload_hash", name="uq_rejected_record_node_id_payload_hash"
        ),
    )


def downgrade() -> None:
    """Drops them."""
    for table in ("rejected_record", "generation", "node_state", "node"):
        op.drop_table(table)


def _nodes() -> None:
    op.create_table(
        "node",
        sa.Column("node_id", sa.String(63), nullable=False),
        _name("boot_id"),
        sa.Column("state", sa.String(16), nullable=False),
        _name("agent_version"),
        _name("device_version"),
        _name("family"),
        sa.Column("facts", sa.JSON(), nullable=False),
        _count("pictures"),
        _count("outbox_records"),
        _moment("first_seen_at"),
        _moment("last_seen_at"),
        sa.PrimaryKeyConstraint("node_id", name="pk_node"),
    )
    op.create_table(
        "node_state",
        _row_number(),
        sa.Column("node_id", sa.String(63), nullable=False),
        _name("boot_id"),
        sa.Column("state", sa.String(16), nullable=False),
        _number("at"),
        _moment("received_at"),
        sa.PrimaryKeyConstraint("id", name="pk_node_state"),
        _of_node("node_state"),
    )
    op.create_index("ix_node_state_node_id_received_at", "node_state", ["node_id", "received_at"])


def _pictures() -> None:
    op.create_table(
        "generation",
        _row_number(),
        sa.Column("node_id", sa.String(63), nullable=False),
        _name("boot_id"),
        _count("sequence"),
        _moment("received_at"),
        _number("created_at"),
        *map(
            _name,
            (
                "generation_id",
                "agent_version",
                "device_version",
                "cloud_version",
                "caption_hash",
            ),
        ),
        sa.Column("caption", sa.Text(), nullable=False),
        _count("seed"),
        _number("temperature"),
        _count("top_k"),
        _number("guidance"),
        _name("policy"),
        _number("threshold"),
        *map(
            _count,
            (
                "tokens",
                "prefix",
                "local",
                "verified",
                "corrected",
                "unverified",
                "wasted",
                "forwards",
                "round_trips",
                "retries",
                "bytes_up",
                "bytes_down",
            ),
        ),
        *map(_number, ("duration_s", "device_s", "wait_s", "queue_s", "forward_s")),
        sa.Column("fallback", sa.String(16), nullable=False),
        sa.Column("scores", sa.LargeBinary(), nullable=False),
        sa.Column("decisions", sa.LargeBinary(), nullable=False),
        sa.Column("confidences", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_generation"),
        sa.UniqueConstraint(
            "node_id", "boot_id", "sequence", name="uq_generation_node_id_boot_id_sequence"
        ),
        _of_node("generation"),
    )
    op.create_index("ix_generation_node_id_received_at", "generation", ["node_id", "received_at"])
    op.create_index("ix_generation_received_at", "generation", ["received_at"])


def _row_number() -> sa.Column[int]:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", number, autoincrement=True, nullable=False)


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(64), nullable=False)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=False)


def _moment(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def _of_node(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["node_id"], ["node.node_id"], name=f"fk_{table}_node_id_node", ondelete="CASCADE"
    )
