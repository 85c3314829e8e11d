"""Migrations: they make the schema of the tables, once, and tell other databases apart."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, LargeBinary, String, column, select, table, text

from cloud_hub.store import revision
from cloud_hub.store.database import Database, insert_new
from cloud_hub.store.periods import Marks, marks
from cloud_hub.store.records import Reported, store_batch
from cloud_hub.store.revision import Standing
from cloud_hub.store.tables import Base, GenerationRow, HistogramRow, NodeRow, SpanRow
from fleet.errors import StoreError
from fleet.ids import NodeId
from fleet.protocol.messages import GenerationRecord
from tests.unit.cloud_hub.records import record


def test_the_schema_of_the_migrations_is_that_of_the_tables(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_a_new_database_is_made_only_where_that_is_wanted(empty: Database) -> None:
    with pytest.raises(StoreError, match="is empty: run `cloud_hub migrate`"):
        revision.prepare(empty, create=False)

    revision.prepare(empty, create=True)

    assert revision.standing(empty) is Standing.CURRENT
    revision.prepare(empty, create=False)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("DELETE FROM alembic_version", "run `cloud_hub migrate`"),
        ("UPDATE alembic_version SET version_num = 'future'", "later release"),
        ("DROP TABLE alembic_version", "another program"),
    ],
)
def test_a_database_of_another_revision_is_refused_with_what_to_do(
    database: Database, statement: str, sentence: str
) -> None:
    with database.write() as connection:
        connection.execute(text(statement))

    with pytest.raises(StoreError, match=sentence):
        revision.prepare(database, create=True)


@pytest.mark.parametrize("statement", ["UPDATE alembic_version SET version_num = 'future'"])
def test_migrate_leaves_a_later_database_alone(database: Database, statement: str) -> None:
    with database.write() as connection:
        connection.execute(text(statement))

    with pytest.raises(StoreError, match="later release"):
        revision.migrate(database)


def test_migrating_twice_changes_nothing(database: Database) -> None:
    assert revision.migrate(database) == revision.head()


def test_five_that_start_on_an_empty_database_make_it_once(url: str) -> None:
    def start(_: int) -> Standing:
        with Database(url) as database:
            revision.migrate(database)
            return revision.standing(database)

    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(start, range(5)))

    assert found == [Standing.CURRENT] * 5


def test_a_database_that_cannot_be_opened_is_a_sentence(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("store")
    (folder / "hub.db").write_bytes(b"this is no database" * 100)
    with (
        Database(f"sqlite:///{folder / 'hub.db'}") as database,
        pytest.raises(StoreError, match="not a database"),
    ):
        revision.standing(database)
    with pytest.raises(StoreError, match="cannot be used"):
        Database("no url")
    with (
        Database("postgresql+psycopg://nobody@127.0.0.1:1/none") as server,
        pytest.raises(StoreError, match=r"refused|failed"),
    ):
        revision.standing(server)


_KILLED = """
import os, signal, sys
from cloud_hub.store import revision, views
from cloud_hub.store.database import Database
views.make = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # the last step of a migration
revision.migrate(Database(sys.argv[1]))
"""


@pytest.mark.parametrize("before", [None, "0001"])
def test_a_migration_that_is_killed_leaves_what_was_there(url: str, before: str | None) -> None:
    with Database(url) as database:
        if before:
            revision.migrate(database, before)
        found = revision.standing(database)

        killed = subprocess.run([sys.executable, "-c", _KILLED, url], check=False, timeout=50)

        assert killed.returncode == -signal.SIGKILL
        assert revision.standing(database) is found
        assert revision.migrate(database) == revision.head()


def test_views_of_another_edition_are_behind_and_made_anew(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("DROP VIEW v_version"))
        connection.execute(text("CREATE VIEW v_version AS SELECT 0 AS edition"))
    assert revision.standing(database) is Standing.BEHIND

    revision.migrate(database)

    assert revision.standing(database) is Standing.CURRENT


def test_pictures_of_the_first_revision_are_kept_and_still_known(url: str) -> None:
    days = [datetime(2026, 11, 29, 23, 59, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)]
    with Database(url) as database:
        revision.migrate(database, "0001")
        with database.write() as connection:
            for sequence, day in enumerate(days):
                _insert_as_0001(connection, record(sequence=sequence), day)
        revision.migrate(database)

        again = [Reported(NodeId("n1"), record(sequence=n), b"") for n in (0, 1, 2)]
        store_batch(database, again, [], datetime(2026, 12, 1, 9, tzinfo=UTC))

        with database.read() as connection:
            found = connection.execute(
                select(
                    GenerationRow.sequence, GenerationRow.received_at, GenerationRow.scores
                ).order_by(GenerationRow.id)
            ).all()
    assert [row.sequence for row in found] == [0, 1, 2]
    assert [row.received_at for row in found[:2]] == days
    assert {bytes(row.scores) for row in found} == {bytes(range(256))}


def test_histograms_and_texts_of_the_fifth_revision_are_kept(url: str) -> None:
    texts = [("boot", "h"), ("0a" * 16, "ab" * 32), ("b" * 16, "AB" * 16), ("c" * 32, "ü" * 16)]
    rows = [(1, "bytes", -3, 7), (1, "wait_s", -3, 2), (1, "wait_s", 9, 1), (2, "wait_s", 9, 4)]
    day = datetime(2026, 12, 1, tzinfo=UTC)
    with Database(url) as database:
        revision.migrate(database, "0001")
        with database.write() as connection:
            for sequence, (boot, caption) in enumerate(texts):
                sent = record(sequence=sequence, boot_id=boot, caption_hash=caption)
                _insert_as_0001(connection, sent, day)
        revision.migrate(database, "0005")
        with database.write() as connection:
            for number in (1, 2):
                hour = {"id": number, "starts_at": day, "span_s": 3600, "node_id": f"n{number}"}
                versions = {"device_version": "d", "cloud_version": "c", "policy": "p"}
                connection.execute(insert_new(connection, SpanRow), hour | versions)
            old = table("histogram", *map(column, ("span_id", "metric", "bucket", "pictures")))
            connection.execute(
                old.insert(), [dict(zip(old.c.keys(), r, strict=True)) for r in rows]
            )
        revision.migrate(database)

        with database.read() as connection:
            names = (HistogramRow.span_id, HistogramRow.bucket, HistogramRow.bytes)
            found = connection.execute(select(*names, HistogramRow.wait_s).order_by(*names)).all()
            others = connection.execute(select(HistogramRow.duration_s)).scalars().all()
            kept = select(GenerationRow.boot_id, GenerationRow.caption_hash)
            read = connection.execute(kept.order_by(GenerationRow.sequence)).all()
            shown = text("SELECT boot_id, caption_hash FROM v_picture ORDER BY sequence")
            seen = connection.execute(shown).all()
    assert [tuple(row) for row in found] == [(1, -3, 7, 2), (1, 9, 0, 1), (2, 9, 0, 4)]
    assert set(others) == {0}
    assert [tuple(row) for row in read] == [tuple(row) for row in seen] == texts


@pytest.mark.parametrize(("hours", "until"), [((), 4), ((4, 5), 4), ((3, 4), 3)])
def test_days_go_on_where_the_sixth_revision_merged_hours(
    url: str, hours: tuple[int, ...], until: int
) -> None:
    """A merge that was killed left hours of a node in a day (3) that holds others already."""
    with Database(url) as database:
        revision.migrate(database, "0006")
        days = [(day, 0, 86_400, "n1") for day in (1, 2, 3)]
        with database.write() as connection:
            for day, hour, length, node in [*days, *((day, 7, 3600, "n2") for day in hours)]:
                begin = {"starts_at": datetime(2026, 12, day, hour, tzinfo=UTC), "span_s": length}
                versions = {"device_version": "d", "cloud_version": "c", "policy": "p"}
                span = begin | {"node_id": node} | versions
                connection.execute(insert_new(connection, SpanRow), span)
        revision.migrate(database)

        with database.read() as connection:
            found = marks(connection)
    reached = datetime(2026, 12, until, tzinfo=UTC)
    assert found == Marks(reached, reached, datetime(1970, 1, 1, tzinfo=UTC))


def _insert_as_0001(connection: Connection, sent: GenerationRecord, now: datetime) -> None:
    later = {"type", "sampling", "repairs", "detailed", "unseen"}
    row = sent.model_dump(exclude=later) | sent.sampling.model_dump()
    node = dict.fromkeys(("boot_id", "state", "agent_version", "device_version", "family"), "")
    moments = {"first_seen_at": now, "last_seen_at": now}
    counts = {"facts": {}, "pictures": 0, "outbox_records": 0}
    connection.execute(
        insert_new(connection, NodeRow), [{"node_id": "n1", **node, **counts, **moments}]
    )
    kinds = {name: c.type for name, c in _columns().items()}
    kinds |= dict.fromkeys(("scores", "decisions", "confidences"), LargeBinary())
    kinds |= dict.fromkeys(("boot_id", "generation_id", "caption_hash"), String())
    old = table("generation", *(column(name, kind) for name, kind in kinds.items()))
    connection.execute(old.insert(), [row | {"node_id": "n1", "received_at": now}])


def _columns() -> dict[str, Any]:
    columns = GenerationRow.__table__.columns
    return {c.name: c for c in columns if c.name not in {"id", "repairs"}}
