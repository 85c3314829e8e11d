"""Sums name their span by number, and a picture's arrays are deflated: fewer bytes a picture."""

import zlib
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SPAN = ("starts_at", "span_s", "node_id", "device_version", "cloud_version", "policy")
_KEYS = {
    "picture_sum": (),
    "histogram": ("metric", "bucket"),
    "score_sum": ("score_bin",),
    "check_sum": ("region", "score_bin"),
}
_ARRAYS = ("scores", "decisions", "confidences")
_AT_ONCE = 1000


def upgrade() -> None:
    """Makes spans of the sums' keys, and packs arrays."""
    op.drop_index("ix_histogram_metric_starts_at", "histogram")
    _make_spans()
    for table, keys in _KEYS.items():
        _by_span(table, keys)
    _deflate()


def downgrade() -> None:
    """Refuses: an earlier release would have to know when this one began to write.

    Raises:
        NotImplementedError: Always; a backup is the way back.
    """
    raise NotImplementedError("restore the backup that was made before the upgrade")


def _make_spans() -> None:
    op.create_table(
        "span",
        sa.Column("id", _ROW_NUMBER, autoincrement=True, nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("span_s", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.String(63), nullable=False),
        *(sa.Column(name, sa.String(64), nullable=False) for name in _SPAN[3:]),
        sa.PrimaryKeyConstraint("id", name="pk_span"),
        sa.UniqueConstraint(*_SPAN, name="uq_span"),
    )
    op.create_index("ix_span_node_id", "span", ["node_id"])
    names = ", ".join(_SPAN)
    every = " UNION ".join(f"SELECT {names} FROM {table}" for table in _KEYS)  # noqa: S608
    op.execute(f"INSERT INTO span ({names}) {every}")


def _by_span(table: str, keys: tuple[str, ...]) -> None:
    """Makes the table anew, each row with its span's number in place of its key."""
    old = f"{table}_0002"
    before = sa.inspect(op.get_bind()).get_columns(table)
    op.rename_table(table, old)
    if op.get_bind().dialect.name == "postgresql":  # a key's name is an index's there
        op.drop_constraint(f"pk_{table}", old)
    own = [each for each in before if each["name"] not in _SPAN]
    op.create_table(
        table,
        sa.Column("span_id", _ROW_NUMBER, autoincrement=False, nullable=False),
        *(sa.Column(each["name"], each["type"], nullable=False) for each in own),
        sa.PrimaryKeyConstraint("span_id", *keys, name=f"pk_{table}"),
        sa.ForeignKeyConstraint(
            ["span_id"], ["span.id"], name=f"fk_{table}_span_id_span", ondelete="CASCADE"
        ),
        sqlite_with_rowid=False,
        postgresql_with={"fillfactor": 100 if table == "histogram" else 50},
    )
    names = ", ".join(each["name"] for each in own)
    values = ", ".join(f"old.{each['name']}" for each in own)
    same = " AND ".join(f"span.{name} = old.{name}" for name in _SPAN)
    op.execute(
        f"INSERT INTO {table} (span_id, {names}) SELECT span.id, {values}"  # noqa: S608
        f" FROM {old} AS old JOIN span ON {same}"
    )
    op.drop_table(old)


def _deflate() -> None:
    """Packs the arrays of all pictures, some at a time."""
    pictures = sa.table(
        "generation",
        sa.column("id", sa.BigInteger),
        *(sa.column(name, sa.LargeBinary) for name in _ARRAYS),
    )
    connection, last = op.get_bind(), 0
    packed: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in _ARRAYS}
    update = sa.update(pictures).where(pictures.c.id == sa.bindparam("picture")).values(packed)
    some = sa.select(pictures).order_by(pictures.c.id).limit(_AT_ONCE)
    while rows := connection.execute(some.where(pictures.c.id > last)).all():
        last = rows[-1].id
        changed = [
            {"picture": row.id} | {f"new_{name}": _packed(getattr(row, name)) for name in _ARRAYS}
            for row in rows
        ]
        connection.execute(update, changed)


def _packed(array: bytes) -> bytes:
    if not array:
        return array
    packer = zlib.compressobj(wbits=-15, strategy=zlib.Z_RLE)
    return packer.compress(array) + packer.flush()


_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
