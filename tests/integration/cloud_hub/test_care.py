"""Old rows go, sums stay what they were, a node is forgotten, a backup is the database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, func, select, text

from cloud_hub.cli import main
from cloud_hub.store import answers, backup, groups, revision
from cloud_hub.store.adding_up import add_up
from cloud_hub.store.care import Keep, care, purge
from cloud_hub.store.database import Database
from cloud_hub.store.periods import MONTH_S, Marks, Period, marks
from cloud_hub.store.records import Rejected, Reported, set_aside, store_batch
from cloud_hub.store.sums import first_open_hour
from cloud_hub.store.tables import AuditRow, Base, GenerationRow, RejectedRecordRow, SpanRow
from fleet.errors import InvalidInputError, StoreError
from fleet.ids import NodeId
from tests.integration.cloud_hub.test_definitions import Log
from tests.unit.cloud_hub.records import record

NOW = datetime(2026, 12, 20, 8, 30, tzinfo=UTC)
LONG = timedelta(days=1000)


def keep(**changes: Any) -> Keep:
    fields: dict[str, Any] = {"pictures": LONG, "tokens": LONG, "hours": LONG}
    return Keep(**(fields | {"rejected": 1000, "bytes": None} | changes))


def fill(database: Database, days: int = 4, a_day: int = 6) -> None:
    """Pictures of the days before NOW, at several hours."""
    for day in range(days):
        for index in range(a_day):
            moment = NOW - timedelta(days=day, hours=index % 3)
            sent = record(sequence=day * a_day + index, duration_s=1.0 + index)
            store_batch(database, [Reported(NodeId(f"n{index % 2}"), sent, b"")], [], moment)


def count(database: Database, row: type[Any]) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(row)).scalar_one())


def read(database: Database, by: list[str]) -> list[answers.Answer]:
    with database.read() as connection:
        questions = (answers.acceptance, answers.latency, answers.reliability)
        return [ask(connection, by, Period()) for ask in questions]


def viewed(database: Database) -> list[Any]:
    """What the views say, in one order."""
    names = ("v_acceptance", "v_latency", "v_score")
    with database.read() as connection:
        rows = (connection.execute(text(f"SELECT * FROM {name}")) for name in names)  # noqa: S608
        return [sorted(map(tuple, found), key=repr) for found in rows]


def test_pictures_go_by_age_and_their_sums_stay(database: Database) -> None:
    fill(database)
    before = read(database, ["node"])

    gone = care(database, keep(pictures=timedelta(days=1, hours=12)), NOW)

    # PostgreSQL drops whole days, SQLite rows.
    assert gone["generation"] == 24 - count(database, GenerationRow)
    assert count(database, GenerationRow) == (12 if database.is_sqlite else 18)
    assert read(database, ["node"]) == before
    again = [Reported(NodeId("n0"), record(sequence=18), b"")]
    store_batch(database, again, [], NOW)  # a picture that went, and comes once more
    assert read(database, ["node"]) == before


def test_hours_go_into_days_and_months_and_no_answer_changes(database: Database) -> None:
    fill(database, days=24)  # of two months
    groups: tuple[list[str], ...] = (["node", "day"], ["node"], [])
    before = [read(database, by) for by in groups]
    views = viewed(database)

    for later in (0, 1, 30):
        care(database, keep(hours=timedelta(days=3)), NOW + timedelta(hours=later))
        assert [read(database, by) for by in groups] == before
        assert viewed(database) == views

    with database.read() as connection:
        found = connection.execute(
            select(SpanRow.span_s, func.min(SpanRow.starts_at)).group_by(SpanRow.span_s)
        )
        since = {length: begin.date() for length, begin in found}
        days_ago = NOW - timedelta(days=4)  # a day counts if it holds this moment
        (answer,) = answers.acceptance(connection, [], Period(days_ago)).records()
    assert since == {
        3600: date(2026, 12, 18),
        86_400: date(2026, 11, 27),
        MONTH_S: date(2026, 11, 1),
    }
    assert answer["pictures"] == 5 * 6


def test_a_question_counts_once_what_is_added_up_while_it_is_asked(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, days=3)
    add_up(database, NOW)  # today's day holds its first hours
    before = read(database, ["node"])

    def added_up_meanwhile(connection: Connection) -> Marks:
        found = marks(connection)
        add_up(database, NOW + timedelta(hours=1))
        return found

    monkeypatch.setattr(groups, "marks", added_up_meanwhile)

    assert read(database, ["node"]) == before
    assert read(database, ["node"]) == before


def test_what_comes_late_counts_in_the_first_hour_that_is_open(database: Database) -> None:
    fill(database, days=2)
    care(database, keep(), NOW + timedelta(hours=1))  # 8:30's hour is closed

    late = record(sequence=100, duration_s=1.0)
    store_batch(database, [Reported(NodeId("n0"), late, b"")], [], NOW)

    with database.read() as connection:
        newest = connection.execute(select(func.max(SpanRow.starts_at))).scalar_one()
        (answer,) = answers.acceptance(connection, [], Period()).records()
    assert newest == NOW.replace(minute=0) + timedelta(hours=1)
    assert answer["pictures"] == 13
    care(database, keep(), NOW + timedelta(hours=3))
    assert read(database, [])[0].records()[0]["pictures"] == 13


def test_two_hubs_add_up_once(database: Database) -> None:
    fill(database)
    before = read(database, ["node", "day"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: add_up(database, NOW + timedelta(hours=2)), range(4)))

    assert read(database, ["node", "day"]) == before


@pytest.mark.postgres
def test_an_hour_that_somebody_writes_to_is_not_closed_under_them(postgres_url: str) -> None:
    """SQLite has one transaction that writes at a time."""
    with Database(postgres_url) as database:
        revision.migrate(database)
        fill(database, days=1, a_day=1)
        _close_while_open(database)


@pytest.mark.postgres
def test_who_waits_for_another_hub_s_adding_up_holds_no_record_up(postgres_url: str) -> None:
    with Database(postgres_url) as database:
        revision.migrate(database)
        fill(database, days=1, a_day=1)
        with ThreadPoolExecutor(1) as pool, database.write() as adding_up:
            marks(adding_up, locked=True)
            closing = pool.submit(add_up, database, NOW + timedelta(hours=5))
            with pytest.raises(TimeoutError):
                closing.result(0.5)
            fill(database, days=1, a_day=2)
            assert not closing.done()
            adding_up.commit()
            closing.result(20)


def _close_while_open(database: Database) -> None:
    with ThreadPoolExecutor(1) as pool, database.write() as connection:
        open_hour = first_open_hour(connection)
        closing = pool.submit(add_up, database, NOW + timedelta(hours=5))
        with pytest.raises(TimeoutError):
            closing.result(0.5)
        assert first_open_hour(connection) == open_hour
        connection.commit()
        closing.result(20)


def test_a_database_beyond_its_bytes_drops_its_oldest_days_and_keeps_today(
    database: Database,
) -> None:
    fill(database)

    care(database, keep(bytes=1), NOW)

    with database.read() as connection:
        left = connection.execute(select(GenerationRow.received_at)).scalars().all()
    assert len(left) == 6
    assert {moment.date() for moment in left} == {NOW.date()}


def test_records_set_aside_are_bounded(database: Database) -> None:
    with database.write() as connection:
        set_aside(connection, [Rejected(NodeId("n1"), bytes([n]), "junk") for n in range(20)], NOW)

    gone = care(database, keep(rejected=5), NOW)

    assert gone["rejected_record"] == 15
    with database.read() as connection:
        left = connection.execute(select(RejectedRecordRow.payload)).scalars().all()
    assert sorted(left) == [bytes([n]) for n in range(15, 20)]


def test_a_purged_node_is_in_no_table(database: Database) -> None:
    Log(database, 1)
    with database.write() as connection:
        set_aside(connection, [Rejected(NodeId("n1"), b"junk", "no")], NOW)

    gone = purge(database, "n1", NOW)

    assert gone["generation"] > 0
    with database.read() as connection:
        for table in Base.metadata.sorted_tables:
            if "node_id" in table.c:
                found = connection.execute(select(func.count()).where(table.c.node_id == "n1"))
                assert found.scalar_one() == 0, table.name
        assert {*connection.execute(select(GenerationRow.node_id)).scalars()} == {"n0", "n2"}
        (said,) = connection.execute(select(AuditRow.detail)).scalars()
    assert said["rows"]["generation"] == gone["generation"]


def test_a_file_shrinks_when_rows_go(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path / 'hub.db'}") as database:
        revision.migrate(database)
        big = Random(1).randbytes(60_000)  # nothing to deflate
        for day in (9, 0):
            sent = [
                Reported(NodeId("n1"), record(sequence=100 * day + n, scores=big), b"")
                for n in range(30)
            ]
            store_batch(database, sent, [], NOW - timedelta(days=day))
        before = database.size()

        care(database, keep(pictures=timedelta(days=1)), NOW)

        with database.read() as connection:
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            page = connection.execute(text("PRAGMA page_size")).scalar_one()
    assert before > 2 * 30 * len(big)
    assert pages * page < 0.75 * before


def test_a_backup_is_the_database(database: Database, url: str, tmp_path: Path) -> None:
    Log(database, 2, count=10)
    before = read(database, ["node"])
    file = tmp_path / "copy"
    run = CliRunner()

    done = run.invoke(main, ["backup", str(file)], env={"CLOUD_HUB_STORE__URL": url})
    assert done.exit_code == 0, done.output
    if database.is_sqlite:
        other = f"sqlite:///{tmp_path / 'other.db'}"
    else:
        other = f"{url}_other"
        with database._engine.connect() as connection:
            own = connection.execution_options(isolation_level="AUTOCOMMIT")
            own.exec_driver_sql(f"CREATE DATABASE {other.rsplit('/', 1)[1]}")
    done = run.invoke(main, ["restore", str(file)], env={"CLOUD_HUB_STORE__URL": other})

    assert done.exit_code == 0, done.output
    with Database(other) as restored:
        assert revision.standing(restored) is revision.Standing.CURRENT
        assert read(restored, ["node"]) == before
        store_batch(restored, [Reported(NodeId("n9"), record(), b"")], [], NOW)
    with pytest.raises(InvalidInputError, match="replaces no file"):
        backup.backup(url, file)
    with pytest.raises((InvalidInputError, StoreError)):  # there is a database already
        backup.restore(other, file)
