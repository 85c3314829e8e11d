"""Runs that the database holds: one at a time, told of, stopped, resumed, the same bits."""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from cloud_hub.rounds import running
from cloud_hub.rounds.conduct import run_number
from cloud_hub.rounds.exchange import number_of
from cloud_hub.rounds.running import ask_to_stop, take_up
from cloud_hub.rounds.telling import Told, run_page
from cloud_hub.store import locks
from cloud_hub.store import rounds as store
from cloud_hub.store.database import Database, insert_new
from cloud_hub.store.revision import migrate
from cloud_hub.store.rounds import DatabaseLedger, Run
from cloud_hub.store.tables import NodeRow, RoundRow
from fleet.errors import CapacityError, InvalidInputError, StoreError
from fleet.federation import client_app
from fleet.federation.ledger import Commit, FolderLedger
from fleet.federation.local_grid import LocalGrid
from fleet.federation.plan import Plan
from fleet.federation.rounds import Rounds
from fleet.federation.task import Task
from fleet.transport.memory import MemoryBroker
from tests.integration.rounds.nodes import NODES, nodes
from tests.unit.federation.toy import PLAN as TOY_PLAN
from tests.unit.federation.toy import make_node, toy_head

PLAN = replace(TOY_PLAN, rounds=3, least_nodes=len(NODES), query_s=60.0, deadline_s=100.0)

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated database that knows the nodes."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'hub.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    with Database(url) as made:
        migrate(made)
        now = datetime.now(UTC)
        row = dict.fromkeys(("boot_id", "state", "agent_version", "device_version", "family"), "")
        with made.write() as connection:
            for node in NODES:
                values = {"node_id": node, "facts": {}, "pictures": 0, "outbox_records": 0}
                seen = {"first_seen_at": now, "last_seen_at": now}
                connection.execute(insert_new(connection, NodeRow), {**row, **values, **seen})
        yield made


def begin(database: Database, name: str = "toy", plan: Plan = PLAN) -> None:
    """Notes a run of the toy head."""
    now = datetime.now(UTC)
    head = toy_head()
    run = Run(name, "waiting", "by a test", "", asdict(plan), "d", head.version, {}, now, None)
    with database.write() as connection:
        store.begin(connection, run, head.to_bytes())


def last(database: Database, name: str = "toy") -> Commit:
    found = DatabaseLedger(database, name, str).last()
    assert found is not None
    return found


def in_one_process(folder: Path, plan: Plan = PLAN) -> Commit:
    """The last round of the same run on an in-process grid."""
    made = {number_of(node): make_node(folder / node, seed) for seed, node in enumerate(NODES)}
    with LocalGrid(client_app.app, made, run=run_number("toy")) as grid:
        found = Rounds(grid, Task(toy_head()), plan, FolderLedger(folder / "ledger")).run()
    assert found is not None
    return found


def assert_same_bits(one: Commit, other: Commit) -> None:
    assert (one.number, one.outcome) == (other.number, other.outcome)
    for name, value in one.change.items():
        np.testing.assert_array_equal(value, other.change[name])


async def test_a_run_is_done_told_of_and_has_the_bits_of_one_process(
    database: Database, tmp_path: Path
) -> None:
    told: list[Told] = []
    begin(database)
    broker = MemoryBroker()

    async with nodes(broker, tmp_path / "nodes"):
        run = await take_up(broker.connect("hub"), database, "toy", told.append)

    assert (run.state, run.rounds, run.holder) == ("done", PLAN.rounds, "")
    assert_same_bits(last(database), in_one_process(tmp_path / "again"))
    assert {each.phase for each in told} == {"query", "train", "validate"}
    assert {name for each in told for name in each.awaited} <= set(NODES)
    with database.read() as connection:
        rounds = store.rounds_of(connection, "toy")
        contents = connection.execute(select(RoundRow.content).order_by(RoundRow.number))
        assert [content is not None for content in contents.scalars()] == [False, True, True]
    for each in rounds:
        assert [(name, part.part) for name, part in each.nodes] == [(n, "used") for n in NODES]
        assert all(part.bytes_down > 0 < part.bytes_up for _, part in each.nodes)
    page = "\n".join(run_page(run, rounds, datetime.now(UTC)))
    assert f"{PLAN.rounds} of {PLAN.rounds} rounds done" in page
    assert "node-b" in page


async def test_a_run_that_is_stopped_says_who_was_awaited_and_goes_on_with_the_same_bits(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "BEAT_S", 0.05)
    begin(database)
    broker = MemoryBroker()
    gate = asyncio.Event()  # round 1 takes a query, training and validation of each node
    async with nodes(broker, tmp_path / "nodes", gate=gate, free=4) as trainers:
        opened = asyncio.Event()
        loop = asyncio.get_running_loop()

        def watch(told: Told) -> None:
            if told.phase == "train" and told.number == 2:
                loop.call_soon_threadsafe(opened.set)

        conducting = asyncio.create_task(
            take_up(broker.connect("hub"), database, "toy", watch), name="conducting"
        )
        await opened.wait()
        trained = {name: trainer.trained for name, trainer in trainers.items()}
        ask_to_stop(database, "toy")
        stopped = await conducting
        gate.set()
        after = await take_up(broker.connect("other hub"), database, "toy")

    assert (stopped.state, stopped.reason) == ("stopped", "stopped by an operator")
    assert stopped.rounds == 1
    assert (after.state, after.rounds) == ("done", PLAN.rounds)
    assert_same_bits(last(database), in_one_process(tmp_path / "again"))
    for name, trainer in trainers.items():  # a query, training and validation a round, once each
        assert trained[name] <= trainer.trained <= 3 * PLAN.rounds


async def test_rounds_run_one_at_a_time_and_a_dead_process_gives_way(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(database, "first")
    begin(database, "second")
    now = datetime.now(UTC)
    with database.write() as connection:
        locks.take(connection, store.LOCK, "a process", "first", now, timedelta(seconds=60))

    with pytest.raises(CapacityError, match="run 'first' is being conducted"):
        await take_up(MemoryBroker().connect("hub"), database, "second")
    with database.write() as connection:
        stale = now - timedelta(seconds=1)
        locks.leave(connection, "a process", stale)
    with database.write() as connection:
        found = locks.take(
            connection, store.LOCK, "b process", "second", now, timedelta(seconds=60)
        )

    assert found == ("b process", "second")


def test_a_run_whose_process_died_is_shown_as_interrupted(database: Database) -> None:
    begin(database)
    with database.write() as connection:
        store.set_state(connection, "toy", "running", "", None)
        told = Told(1, "train", 3, ("node-b",), datetime.now(UTC) + timedelta(seconds=30))
        progress = running._plain(told)
        store.note_progress(connection, "toy", progress)
        dead = store.run_of(connection, "toy", datetime.now(UTC))
        locks.take(connection, store.LOCK, "p", "toy", datetime.now(UTC), timedelta(seconds=60))
        alive = store.run_of(connection, "toy", datetime.now(UTC))

    now = datetime.now(UTC)
    assert next(run_page(dead, [], now)) == "toy, started by a test, is interrupted"
    lines = list(run_page(alive, [store.Ended(1, "open", "", {}, now, 0.0, ())], now))
    assert lines[0] == "toy, started by a test, is running"
    assert "round 1 train: 2 of 3 have answered, awaits node-b until" in lines[2]
    assert lines[3] == f"  round 1 is open since {now:%H:%M:%S} UTC"


def test_only_a_run_that_somebody_conducts_can_be_stopped(database: Database) -> None:
    begin(database)

    with pytest.raises(InvalidInputError, match="nobody conducts it"):
        ask_to_stop(database, "toy")
    with pytest.raises(InvalidInputError, match="there is no run 'other'"):
        ask_to_stop(database, "other")
    with pytest.raises(InvalidInputError, match="there is a run 'toy' already"):
        begin(database)


def test_a_plan_that_is_wrong_is_refused_by_name() -> None:
    assert Plan.from_texts({"rounds": "7", "rate": "0.5", "strategy": "median"}).rounds == 7
    with pytest.raises(InvalidInputError, match="has no 'round': take some of rounds"):
        Plan.from_texts({"round": "7"})
    with pytest.raises(InvalidInputError, match="rounds is 'many': give it a whole number"):
        Plan.from_texts({"rounds": "many"})


def test_a_round_without_its_weights_is_a_sentence(database: Database) -> None:
    begin(database)
    ledger = DatabaseLedger(database, "toy", str)
    assert (ledger.opened(), ledger.last()) == (None, None)
    with database.write() as connection:
        row = {"run_id": "toy", "number": 1, "outcome": "kept", "reason": "", "seed": 1}
        more: dict[str, object] = {"opening": {}, "figures": {}, "content": None, "duration_s": 0.0}
        moments = {"opened_at": datetime.now(UTC), "ended_at": None}
        connection.execute(insert_new(connection, RoundRow), {**row, **more, **moments})

    with pytest.raises(StoreError, match="weights of the last round are gone"):
        ledger.last()
