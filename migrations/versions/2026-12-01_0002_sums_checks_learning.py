"""Sums, spot checks, tokens, what was learned; a picture's key gives way to its boot's runs.

PostgreSQL gets one partition of `generation` a day, which drops in no time.
"""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from struct import pack
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the new tables, and moves pictures to the new `generation`."""
    _boots()
    _move_pictures()
    _checks()
    _sums()
    _learning()


def downgrade() -> None:
    """Refuses: pictures would have to get their key back, which retention may have broken.

    Raises:
        NotImplementedError: Always; a backup is the way back.
    """
    raise NotImplementedError("restore the backup that was made before the upgrade")


def _boots() -> None:
    op.create_table(
        "boot",
        _node(),
        _name("boot_id"),
        _bytes("seen"),
        _moment("first_seen_at"),
        _moment("last_seen_at"),
        sa.PrimaryKeyConstraint("node_id", "boot_id", name="pk_boot"),
    )


def _move_pictures() -> None:
    for index in ("ix_generation_node_id_received_at", "ix_generation_received_at"):
        op.drop_index(index, "generation")
    op.rename_table("generation", "generation_0001")
    server = op.get_bind().dialect.name == "postgresql"
    if server:  # names of keys are names of indexes there, and so of the whole schema
        for name in ("pk_generation", "uq_generation_node_id_boot_id_sequence"):
            op.drop_constraint(name, "generation_0001")
    columns = _make_pictures(server=server)
    _note_boots()
    if server:
        _make_days()
    names = ", ".join(columns)
    op.execute(
        f"INSERT INTO generation ({names}, repairs) SELECT {names}, '' FROM generation_0001"  # noqa: S608
    )
    op.drop_table("generation_0001")
    if server:  # the new table's numbers go on after the old one's
        op.execute(
            "SELECT setval(pg_get_serial_sequence('generation', 'id'),"
            " (SELECT coalesce(max(id), 0) + 1 FROM generation), false)"
        )


def _make_pictures(*, server: bool) -> list[str]:
    names = ("generation_id", "agent_version", "device_version", "cloud_version", "caption_hash")
    counts = ("tokens", "prefix", "local", "verified", "corrected", "unverified", "wasted")
    cloud = ("forwards", "round_trips", "retries", "bytes_up", "bytes_down")
    columns: list[sa.Column[Any]] = [
        _row_number(),
        _node(),
        _name("boot_id"),
        _count("sequence"),
        _moment("received_at"),
        _number("created_at"),
        *map(_name, names),
        sa.Column("caption", sa.Text(), nullable=False),
        _count("seed"),
        _number("temperature"),
        _count("top_k"),
        _number("guidance"),
        _name("policy"),
        _number("threshold"),
        *map(_count, counts + cloud),
        *map(_number, ("duration_s", "device_s", "wait_s", "queue_s", "forward_s")),
        sa.Column("fallback", sa.String(16), nullable=False),
        *map(_bytes, ("scores", "decisions", "confidences")),
    ]
    key = ("id", "received_at") if server else ("id",)
    op.create_table(
        "generation",
        *columns,
        _name("repairs"),
        sa.PrimaryKeyConstraint(*key, name="pk_generation"),
        sa.ForeignKeyConstraint(
            ["node_id"], ["node.node_id"], name="fk_generation_node_id_node", ondelete="CASCADE"
        ),
        postgresql_partition_by="RANGE (received_at)",
    )
    op.create_index("ix_generation_node_id_received_at", "generation", ["node_id", "received_at"])
    op.create_index("ix_generation_received_at", "generation", ["received_at"])
    op.create_index("ix_generation_generation_id", "generation", ["generation_id"])
    return [column.name for column in columns]


def _note_boots() -> None:
    """Notes which sequence numbers are there, so that none is stored again."""
    boots: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    rows = op.get_bind().execute(
        sa.text("SELECT node_id, boot_id, sequence FROM generation_0001 ORDER BY sequence")
    )
    for node, boot, sequence in rows:
        boots[node, boot].append(sequence)
    boot_table = sa.table(
        "boot",
        sa.column("node_id", sa.String),
        sa.column("boot_id", sa.String),
        sa.column("seen", sa.LargeBinary),
        sa.column("first_seen_at", sa.DateTime(timezone=True)),
        sa.column("last_seen_at", sa.DateTime(timezone=True)),
    )
    now = datetime.now(UTC)
    if op.get_bind().dialect.name == "sqlite":
        now = now.replace(tzinfo=None)
    noted = {"first_seen_at": now, "last_seen_at": now}
    op.bulk_insert(
        boot_table,
        [
            {"node_id": node, "boot_id": boot, "seen": _runs(numbers), **noted}
            for (node, boot), numbers in boots.items()
        ],
    )


def _runs(numbers: list[int]) -> bytes:
    """First and last of each unbroken run of rising numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return b"".join(pack("<2q", *run) for run in runs)


def _make_days() -> None:
    days = op.get_bind().execute(
        sa.text("SELECT DISTINCT (received_at AT TIME ZONE 'UTC')::date FROM generation_0001")
    )
    for (day,) in days.all():
        op.execute(
            f"CREATE TABLE generation_{day:%Y%m%d} PARTITION OF generation FOR VALUES"
            f" FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')"
        )


def _checks() -> None:
    op.create_table(
        "spot_check",
        _name("check_id"),
        _node(),
        _name("generation_id"),
        _name("cloud_version"),
        _moment("checked_at"),
        sa.Column("is_counted", sa.Boolean(), nullable=False),
        *map(_bytes, ("positions", "local", "matches", "harms", "probabilities")),
        sa.PrimaryKeyConstraint("check_id", name="pk_spot_check"),
    )
    op.create_index("ix_spot_check_generation_id", "spot_check", ["generation_id"])
    op.create_index("ix_spot_check_checked_at", "spot_check", ["checked_at"])
    op.create_table(
        "token",
        _node(),
        _name("generation_id"),
        _small("position"),
        _moment("received_at"),
        _number("score"),
        _small("decision"),
        _number("confidence"),
        sa.PrimaryKeyConstraint("node_id", "generation_id", "position", name="pk_token"),
    )
    op.create_index("ix_token_received_at", "token", ["received_at"])


def _sums() -> None:
    counts = ["pictures", "calls", "fallbacks", "tokens", "prefix", "local", "verified"]
    counts += ["corrected", "unverified", "wasted", "forwards", "round_trips", "retries"]
    counts += ["bytes_up", "bytes_down"]
    seconds = ("duration_s", "device_s", "wait_s", "queue_s", "forward_s")
    _sum(
        "picture_sum",
        (),
        [*map(_count, counts), *map(_number, seconds)],
    )
    _sum(
        "histogram",
        ("metric", "bucket"),
        [sa.Column("metric", sa.String(16), nullable=False), _small("bucket"), _count("pictures")],
    )
    op.create_index("ix_histogram_metric_starts_at", "histogram", ["metric", "starts_at"])
    became = ("local", "verified", "corrected", "unverified")
    _sum("score_sum", ("score_bin",), [_small("score_bin"), *map(_count, became)])
    found = [*map(_count, ("checked", "mismatched")), *map(_number, ("harm", "probability"))]
    _sum(
        "check_sum",
        ("region", "score_bin"),
        [_small("region"), _small("score_bin"), *found],
    )


def _sum(table: str, keys: tuple[str, ...], columns: list[sa.Column[Any]]) -> None:
    names = ("device_version", "cloud_version", "policy")
    op.create_table(
        table,
        _moment("starts_at"),
        _count("span_s"),
        _node(),
        *map(_name, names),
        *columns,
        sa.PrimaryKeyConstraint(
            "starts_at", "span_s", "node_id", *names, *keys, name=f"pk_{table}"
        ),
    )


def _learning() -> None:
    op.create_table(
        "threshold",
        _row_number(),
        _node(),
        _name("device_version"),
        _name("policy"),
        _number("threshold"),
        _name("rule"),
        _facts("basis"),
        _moment("set_at"),
        _moment("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_threshold"),
    )
    op.create_index("ix_threshold_node_id_set_at", "threshold", ["node_id", "set_at"])
    op.create_table(
        "model_version",
        _name("version"),
        _state("kind"),
        *map(_name, ("family", "parent", "round_id")),
        _moment("made_at"),
        _facts("facts"),
        sa.PrimaryKeyConstraint("version", name="pk_model_version"),
    )
    _rounds()
    _rollouts()
    op.create_table(
        "audit",
        _row_number(),
        _moment("at"),
        _name("actor"),
        _name("action"),
        sa.Column("target", sa.String(128), nullable=False),
        _facts("detail"),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])


def _rounds() -> None:
    op.create_table(
        "round",
        _name("round_id"),
        _count("number"),
        _state("state"),
        *map(_name, ("base_version", "result_version")),
        *map(_facts, ("settings", "figures")),
        *map(_moment, ("opened_at", "deadline_at")),
        _moment("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("round_id", name="pk_round"),
    )
    op.create_table(
        "round_participant",
        _name("round_id"),
        _node(),
        _state("state"),
        _text("reason"),
        _count("examples"),
        sa.Column("norm", sa.Double(), nullable=True),
        _count("bytes"),
        _moment("asked_at"),
        _moment("answered_at", nullable=True),
        sa.PrimaryKeyConstraint("round_id", "node_id", name="pk_round_participant"),
        sa.ForeignKeyConstraint(
            ["round_id"],
            ["round.round_id"],
            name="fk_round_participant_round_id_round",
            ondelete="CASCADE",
        ),
    )


def _rollouts() -> None:
    op.create_table(
        "rollout",
        *map(_name, ("rollout_id", "version", "previous")),
        _state("state"),
        _text("reason"),
        _facts("plan"),
        _moment("started_at"),
        _moment("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_rollout"),
    )
    op.create_table(
        "rollout_node",
        _name("rollout_id"),
        _node(),
        _count("stage"),
        _state("state"),
        _text("reason"),
        _moment("changed_at"),
        sa.PrimaryKeyConstraint("rollout_id", "node_id", name="pk_rollout_node"),
        sa.ForeignKeyConstraint(
            ["rollout_id"],
            ["rollout.rollout_id"],
            name="fk_rollout_node_rollout_id_rollout",
            ondelete="CASCADE",
        ),
    )


def _row_number() -> sa.Column[Any]:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", number, autoincrement=True, nullable=False)


def _node() -> sa.Column[Any]:
    return sa.Column("node_id", sa.String(63), nullable=False)


def _name(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.String(64), nullable=False)


def _state(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.String(16), nullable=False)


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=False)


def _count(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _small(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.SmallInteger(), nullable=False)


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=False)


def _bytes(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.LargeBinary(), nullable=False)


def _moment(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _facts(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)
