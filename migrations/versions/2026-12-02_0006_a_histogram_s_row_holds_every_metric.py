"""A histogram's row holds every metric; PostgreSQL keeps ids as bytes, pictures keyless."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_METRICS = ("duration_s", "device_s", "wait_s", "queue_s", "forward_s", "bytes")
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COUNT = sa.Integer().with_variant(sa.BigInteger(), "sqlite")


def upgrade() -> None:
    """Makes histograms anew, and a picture's keys and texts shorter."""
    _histograms()
    op.drop_index("ix_generation_node_id_received_at", "generation")
    if op.get_bind().dialect.name == "postgresql":
        # One statement, which writes every row once.
        shorter = ", ".join(map(_as_bytes, ("boot_id", "generation_id", "caption_hash")))
        op.execute(f"ALTER TABLE generation DROP CONSTRAINT pk_generation, {shorter}")
        for table in ("spot_check", "token"):
            op.execute(f"ALTER TABLE {table} {_as_bytes('generation_id')}")
    op.create_index("ix_generation_node_id", "generation", ["node_id"])


def downgrade() -> None:
    """Refuses: an earlier release cannot read what this one writes.

    Raises:
        NotImplementedError: Always; a backup is the way back.
    """
    raise NotImplementedError("restore the backup that was made before the upgrade")


def _histograms() -> None:
    op.rename_table("histogram", "histogram_0004")
    if op.get_bind().dialect.name == "postgresql":  # a key's name is an index's there
        op.drop_constraint("pk_histogram", "histogram_0004")
    op.create_table(
        "histogram",
        sa.Column("span_id", _ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        *(sa.Column(name, _COUNT, nullable=False) for name in _METRICS),
        sa.PrimaryKeyConstraint("span_id", "bucket", name="pk_histogram"),
        sa.ForeignKeyConstraint(
            ["span_id"], ["span.id"], name="fk_histogram_span_id_span", ondelete="CASCADE"
        ),
        sqlite_with_rowid=False,
    )
    sums = ", ".join(
        f"SUM(CASE metric WHEN '{name}' THEN pictures ELSE 0 END)" for name in _METRICS
    )
    op.execute(
        f"INSERT INTO histogram (span_id, bucket, {', '.join(_METRICS)})"  # noqa: S608
        f" SELECT span_id, bucket, {sums} FROM histogram_0004 GROUP BY span_id, bucket"
    )
    op.drop_table("histogram_0004")


def _as_bytes(name: str) -> str:
    """Hexadecimal digits of an id or a hash as their bytes, another text as it is in UTF-8."""
    text = f"convert_to({name}, 'UTF8')"
    return (
        f"ALTER {name} TYPE BYTEA USING CASE"
        f" WHEN {name} ~ '^([0-9a-f]{{32}}|[0-9a-f]{{64}})$' THEN decode({name}, 'hex')"
        f" WHEN octet_length({name}) IN (16, 32) THEN '\\x00' || {text}"
        f" ELSE {text} END"
    )
