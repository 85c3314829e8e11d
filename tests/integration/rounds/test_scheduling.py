"""Schedules in the database: fired once, told of, missed, and resumed where a hub has died."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from onnx import helper, numpy_helper

from cloud_hub.rounds import running, scheduling
from cloud_hub.rounds.conditions import Serving
from cloud_hub.store import rounds, schedule
from cloud_hub.store.database import Database
from cloud_hub.store.revision import migrate
from cloud_hub.store.schedule import Schedule
from fleet.errors import InvalidInputError
from fleet.ids import ModelVersion
from fleet.models.bundle import Bundle
from fleet.transport.memory import MemoryBroker
from tests.integration.rounds.nodes import NODES, nodes
from tests.unit.federation.toy import PLAN, toy_head

SERVING = Serving(ModelVersion("cloud-2"), 0.1)
TWO = NODES[:2]
SMALL: dict[str, Any] = {
    "rounds": 1,
    "rank": PLAN.rank,
    "steps": PLAN.steps,
    "least_samples": PLAN.least_samples,
    "query_s": 60.0,
    "deadline_s": 100.0,
}

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'hub.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    with Database(url) as made:
        migrate(made)
        yield made


def toy_bundle() -> Bundle:
    """What `running.begin` needs of a bundle: a graph that holds the toy's head."""
    head = toy_head()
    arrays = {
        "head.center.weight": head.center,
        "head.radius_down.weight": head.radius_down,
        "head.radius_up.weight": head.radius_up,
        "head.radius_up.bias": head.radius_bias,
    }
    tensors = [numpy_helper.from_array(value, name) for name, value in arrays.items()]
    model: onnx.ModelProto = helper.make_model(helper.make_graph([], "toy", [], [], tensors))
    content = model.SerializeToString()
    manifest = SimpleNamespace(device_version="d")
    return cast(Bundle, SimpleNamespace(read=lambda _: content, manifest=manifest))


def add(database: Database, due: timedelta, **changes: Any) -> None:
    """A schedule that is due so long from now."""
    made = Schedule("nightly", "cron", "0 3 * * *", 0.0, SMALL, datetime.now(UTC) + due)
    with database.write() as connection:
        schedule.add(connection, replace(made, **changes))


def stored(database: Database) -> Schedule:
    with database.read() as connection:
        (found,) = schedule.schedules(connection)
    return found


@asynccontextmanager
async def hub(database: Database, broker: MemoryBroker) -> AsyncIterator[None]:
    """A hub's scheduler, until the context ends."""
    made = scheduling.Hub(broker.connect("hub"), database, SERVING, toy_bundle)
    task = asyncio.create_task(scheduling.run(made), name="schedule")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until_told(database: Database) -> Schedule:
    while not (found := stored(database)).told:
        await asyncio.sleep(0.05)
    return found


async def test_a_schedule_begins_a_run_on_the_cloud_model_of_now_and_tells_what_came_of_it(
    database: Database, tmp_path: Path
) -> None:
    add(database, timedelta(seconds=-5))
    broker = MemoryBroker()

    async with nodes(broker, tmp_path / "nodes", TWO, cloud="cloud-2"), hub(database, broker):
        found = await until_told(database)

    now = datetime.now(UTC)
    assert "is done, 1 of 1 rounds were kept" in found.told
    assert found.next_at is not None
    assert found.next_at > now
    with database.read() as connection:
        (run,) = rounds.runs(connection, now)
    assert run.started_by == "by schedule nightly: it is time"
    assert (run.state, run.kept, run.base_version) == ("done", 1, "d")


async def test_a_condition_that_does_not_hold_begins_no_run(database: Database) -> None:
    add(database, timedelta(seconds=-5), kind="drift", limit=0.02)

    async with hub(database, MemoryBroker()):
        found = await until_told(database)

    assert "no run: fewer than 1000 tokens were judged" in found.told
    with database.read() as connection:
        assert rounds.runs(connection, datetime.now(UTC)) == []


async def test_a_time_that_no_hub_saw_is_told_of_and_not_made_up_for(database: Database) -> None:
    add(database, timedelta(hours=-2), timing="0 3 1 1 *")

    async with hub(database, MemoryBroker()):
        found = await until_told(database)

    assert "was missed: no hub was up" in found.told
    with database.read() as connection:
        assert rounds.runs(connection, datetime.now(UTC)) == []


async def test_a_run_that_a_hub_left_unfinished_is_taken_up_again(
    database: Database, tmp_path: Path
) -> None:
    add(database, timedelta(seconds=-5))
    broker = MemoryBroker()
    async with hub(database, broker):  # nobody can train: the run waits for nodes
        while True:
            with database.read() as connection:
                left = rounds.runs(connection, datetime.now(UTC))
            if left and left[0].holder:
                break
            await asyncio.sleep(0.05)
    with database.write() as connection:
        interrupted = rounds.run_of(connection, left[0].run_id, datetime.now(UTC))
        schedule.set_next(connection, "nightly", datetime.now(UTC))
        connection.exec_driver_sql("UPDATE round_schedule SET fired_at = NULL, told = ''")
    async with nodes(broker, tmp_path / "nodes", TWO, cloud="cloud-2"), hub(database, broker):
        found = await until_told(database)

    assert interrupted.is_interrupted
    assert f"run {left[0].run_id} is done, 1 of 1 rounds were kept" in found.told


def test_of_two_hubs_one_fires(database: Database) -> None:
    add(database, timedelta())
    now, apart = datetime.now(UTC), scheduling.APART
    with database.write() as connection:
        claims = [schedule.claim(connection, "nightly", now, apart) for _ in range(2)]
        later = schedule.claim(connection, "nightly", now + apart, apart)

    assert (claims, later) == ([True, False], True)


def test_schedules_are_named_once(database: Database) -> None:
    add(database, timedelta())

    with pytest.raises(InvalidInputError, match="there is a schedule 'nightly' already"):
        add(database, timedelta())
    with database.write() as connection, pytest.raises(InvalidInputError, match="no schedule"):
        schedule.remove(connection, "weekly")


def test_a_run_has_a_name_that_can_be_a_name(database: Database) -> None:
    with pytest.raises(InvalidInputError, match="is no name for a run"):
        running.begin(database, "No Name", PLAN, toy_bundle(), "by hand")
