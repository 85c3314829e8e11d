"""A rollout over the settings from afar: canaries first, and what they do decides by itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import insert, select, update

from cloud_hub import desired
from cloud_hub.app import device_bundle
from cloud_hub.rollout import by_itself, controller, lease
from cloud_hub.rollout.by_itself import Hub
from cloud_hub.rollout.controller import Wish, ask_to_stop, begin, reopen, take_up
from cloud_hub.rollout.plan import canaries
from cloud_hub.rollout.telling import page
from cloud_hub.settings import RolloutSettings
from cloud_hub.store import catalog, locks
from cloud_hub.store import rollouts as store
from cloud_hub.store.database import Database, insert_new
from cloud_hub.store.periods import HOUR_S, begin_of
from cloud_hub.store.revision import migrate
from cloud_hub.store.sums import Sums
from cloud_hub.store.tables import CheckSumRow, GenerationRow, NodeRow, RolloutNodeRow, RolloutRow
from fleet.errors import InvalidInputError
from fleet.ids import BootId, NodeId
from fleet.models.signing import generate_key
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import DesiredSettings, ReportedSettings
from fleet.transport.memory import MemoryBroker
from tests.integration.rounds.finished import finished
from tests.unit.edge_agent.toy_record import toy_record

NODES = [NodeId(f"node-{letter}") for letter in "abcd"]
OLD, NEW = "0" * 16, "1" * 16
SOURCE = "http://hub/models"
PICTURES = 20  # of each version
WISH = Wish(NEW, SOURCE, share=0.25, least=500)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(controller, "LOOK_S", 0.02)
    monkeypatch.setattr(desired, "RETAINED_S", 0.02)
    monkeypatch.setattr(by_itself, "LOOK_S", 0.05)
    monkeypatch.setattr(by_itself, "YOUNG", timedelta(0))
    monkeypatch.setattr(lease, "BEAT_S", 0.05)
    now = datetime.now(UTC)
    empty = dict.fromkeys(("boot_id", "agent_version", "family"), "")
    counts: dict[str, Any] = {"facts": {}, "pictures": 0, "outbox_records": 0}
    moments = {"first_seen_at": now, "last_seen_at": now}
    with Database(f"sqlite:///{tmp_path / 'hub.db'}") as made:
        migrate(made)
        with made.write() as connection:
            for node in NODES:
                row = {"node_id": node, "state": "ready", "device_version": OLD}
                connection.execute(
                    insert_new(connection, NodeRow), {**row, **empty, **counts, **moments}
                )
            made_before = now - timedelta(hours=1)
            version = catalog.Version(NEW, "device", "f", OLD, "some-run", made_before, {})
            catalog.add(connection, version)
        yield made


def saw(database: Database, version: str, judged: int, corrected: int, mismatched: int) -> None:
    """What devices on a version did in this hour; as many tokens were checked as judged."""
    now = datetime.now(UTC)
    span = (begin_of(now, HOUR_S), HOUR_S, "n", version, "c", "ciar")
    sums = Sums()
    sums.add(CheckSumRow, span, (0, 0), {"checked": judged, "mismatched": mismatched})
    drawn = {"verified": judged // PICTURES, "corrected": corrected // PICTURES}
    made = {"node_id": NODES[0], "device_version": version, "received_at": now}
    with database.write() as connection:
        sums.write(connection)
        for number in range(PICTURES):
            row = toy_record().model_dump() | drawn | made | {"sequence": number}
            kept = {name: row[name] for name in row if name in GenerationRow.__table__.columns}
            kept |= {"cloud_version": "c", "temperature": 1.0, "top_k": 0, "guidance": 1.0}
            connection.execute(insert(GenerationRow).values(**kept))


@asynccontextmanager
async def devices(
    broker: MemoryBroker, database: Database, fails: str = ""
) -> AsyncIterator[dict[str, str]]:
    """Devices that run what they are told, or say why not; which version each runs."""
    running: dict[str, str] = dict.fromkeys(NODES, OLD)

    async def follow(node: NodeId, arrivals: Any, transport: Any) -> None:
        async for inbound in arrivals:
            inbound.ack()
            wanted = decode(inbound.payload)
            assert isinstance(wanted, DesiredSettings)
            version = json.loads(wanted.settings.get("device.version", f'"{OLD}"'))
            facts = {"update": f"{version} failed: {fails}"} if fails and version != OLD else {}
            running[node] = OLD if facts else version
            with database.write() as connection:
                connection.execute(
                    update(NodeRow)
                    .where(NodeRow.node_id == node)
                    .values(device_version=running[node], facts=facts)
                )
            told = ReportedSettings(
                boot_id=BootId("b"), version=wanted.version, settings=dict(wanted.settings)
            )
            await transport.publish(topics.reported(node), encode(told), qos=1, retain=True)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []
        for node in NODES:
            transport = broker.connect(node)
            arrivals = await stack.enter_async_context(
                transport.subscribe(topics.desired(node), qos=1, limit=10)
            )
            tasks.append(group.create_task(follow(node, arrivals, transport)))
        yield running
        for task in tasks:
            task.cancel()


def states(database: Database) -> tuple[str, dict[str, str]]:
    """How the rollout stands, and each node in it."""
    with database.read() as connection:
        state = connection.execute(select(RolloutRow.state)).scalar_one()
        columns = (RolloutNodeRow.node_id, RolloutNodeRow.state)
        rows = connection.execute(select(*columns)).all()
    return str(state), {row.node_id: row.state for row in rows}


def hub_of(database: Database, broker: MemoryBroker, folder: Path, **given: Any) -> Hub:
    """A hub that rolls out by itself."""
    values = {"by_itself": True, "source": SOURCE, "share": 0.25, "least": 500, **given}
    transport = broker.connect("hub")
    settings = RolloutSettings(**values)
    return Hub(transport, database, settings, folder / "models", lambda: device_bundle(None))


@asynccontextmanager
async def at_work(hub: Hub) -> AsyncIterator[None]:
    """A hub that serves, until the context ends."""
    task = asyncio.create_task(by_itself.run(hub), name="rollouts")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def only(database: Database) -> store.Rollout:
    """The rollout of the test."""
    with database.read() as connection:
        (found,) = store.rollouts(connection, datetime.now(UTC))
    return found


async def until(database: Database, state: str) -> store.Rollout:
    """The rollout, once it stands so."""
    while True:
        with database.read() as connection:
            found = store.rollouts(connection, datetime.now(UTC))
        if found and found[0].state == state:
            return found[0]
        await asyncio.sleep(0.02)


async def roll_out(database: Database, broker: MemoryBroker, told: list[str]) -> store.Rollout:
    begin(database, "r1", WISH, "by hand")
    return await take_up(broker.connect("operator"), database, "r1", told.append)


# ── What decides ──────────────────────────────────────────────────────────────────────────


async def test_a_canary_that_does_well_is_followed_by_all(database: Database) -> None:
    saw(database, OLD, 5000, 1000, 250)
    saw(database, NEW, 600, 100, 25)
    broker, told = MemoryBroker(), list[str]()

    async with devices(broker, database) as running:
        done = await roll_out(database, broker, told)

    assert (done.state, done.holder) == ("done", "")
    assert "no rate is surely worse" in done.reason
    assert set(running.values()) == {NEW}
    state, nodes = states(database)
    assert (state, set(nodes)) == ("done", set(NODES))
    assert any("widen: no rate is surely worse" in line for line in told)
    with database.read() as connection:
        text = "\n".join(page(done, store.nodes_of(connection, "r1"), ""))
    (canary,) = canaries(NODES, NEW, WISH.share)
    assert "r1, started by hand, is done: no rate is surely worse" in text
    assert f"{canary:<24}  canary" in text
    assert text.count("other   sent") == len(NODES) - 1


async def test_a_canary_that_does_worse_is_taken_back_and_nobody_else_had_it(
    database: Database,
) -> None:
    saw(database, OLD, 5000, 1000, 250)
    saw(database, NEW, 300, 200, 20)
    broker = MemoryBroker()
    (canary,) = canaries(NODES, NEW, WISH.share)

    async with devices(broker, database) as running:
        done = await roll_out(database, broker, [])

    assert "corrections are at least" in done.reason
    assert set(running.values()) == {OLD}
    assert states(database) == ("rolled_back", {canary: "rolled_back"})


async def test_a_canary_that_cannot_run_it_is_reason_enough(database: Database) -> None:
    broker = MemoryBroker()

    async with devices(broker, database, fails="it gives no numbers") as running:
        done = await roll_out(database, broker, [])

    assert done.state == "rolled_back"
    assert "it gives no numbers" in done.reason
    assert set(running.values()) == {OLD}


async def test_too_few_tokens_in_time_take_the_version_back(database: Database) -> None:
    broker, hasty = MemoryBroker(), replace(WISH, wait_s=0.2)

    async with devices(broker, database) as running:
        begin(database, "r1", hasty, "by hand")
        done = await take_up(broker.connect("operator"), database, "r1")

    assert (done.state, set(running.values())) == ("rolled_back", {OLD})
    assert "too little was seen in time: 0 of 500 tokens" in done.reason


def test_what_cannot_be_rolled_out_is_refused_with_a_sentence(database: Database) -> None:
    with pytest.raises(InvalidInputError, match=r"version '2222': the newest are 1{16}"):
        begin(database, "r1", replace(WISH, version="2222"), "by hand")
    begin(database, "r1", WISH, "by hand")
    with pytest.raises(InvalidInputError, match=r"r1 of 1{16} is running"):
        begin(database, "r2", WISH, "by hand")
    ask_to_stop(database, "r1")
    with database.write() as connection:
        connection.execute(update(NodeRow).values(state="lost"))
    with pytest.raises(InvalidInputError, match="no device is up"):
        begin(database, "r3", WISH, "by hand")
    with pytest.raises(InvalidInputError, match="'r1' is stopped: nothing is left"):
        ask_to_stop(database, "r1")
    with pytest.raises(InvalidInputError, match="no rollout 'r9'"):
        reopen(database, "r9")


# ── By itself, and across restarts ────────────────────────────────────────────────────────


async def test_a_hub_rolls_out_what_a_run_made_and_does_so_once(
    database: Database, tmp_path: Path
) -> None:
    saw(database, OLD, 5000, 1000, 250)
    saw(database, NEW, 600, 100, 25)
    broker = MemoryBroker()

    async with devices(broker, database) as running, at_work(hub_of(database, broker, tmp_path)):
        done = await until(database, "done")
        await asyncio.sleep(0.2)  # some more looks

    assert only(database).rollout_id == done.rollout_id
    assert done.plan["started_by"] == "by the hub, after run some-run"
    assert set(running.values()) == {NEW}


async def test_a_rollout_outlives_its_hub_and_tells_no_canary_twice(
    database: Database, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    (canary,) = canaries(NODES, NEW, WISH.share)

    async with devices(broker, database) as running:
        async with at_work(hub_of(database, broker, tmp_path)):
            await until(database, "running")
            while states(database)[1] != {canary: "active"}:
                await asyncio.sleep(0.02)
        left = only(database)
        told = await retained(broker, canary)
        saw(database, OLD, 5000, 1000, 250)
        saw(database, NEW, 600, 100, 25)
        async with at_work(hub_of(database, broker, tmp_path, by_itself=False)):
            await until(database, "done")

    assert (left.state, left.holder) == ("running", "")
    assert set(running.values()) == {NEW}
    assert await retained(broker, canary) == told


async def test_what_was_decided_before_a_kill_is_done_after_it(
    database: Database, tmp_path: Path
) -> None:
    """The hub dies when it has decided, and one of three others was told."""
    broker = MemoryBroker()
    begin(database, "r1", WISH, "by hand")
    (canary,) = canaries(NODES, NEW, WISH.share)
    first, *others = [node for node in NODES if node != canary]
    now = datetime.now(UTC)
    with database.write() as connection:
        store.move(connection, "r1", "widening", "no rate is surely worse")
        for node, stage in ((canary, 0), (first, 1)):
            row = {"rollout_id": "r1", "node_id": node, "stage": stage, "reason": ""}
            store.note_node(connection, {**row, "state": "sent", "changed_at": now})
        # The dead hub's lock, which is over in a moment.
        locks.take(connection, store.LOCK, "dead", "r1", now, timedelta(seconds=0.3))

    async with devices(broker, database) as running, at_work(hub_of(database, broker, tmp_path)):
        done = await until(database, "done")

    assert done.reason == "no rate is surely worse"
    assert {node for node, version in running.items() if version == NEW} == set(others)


async def test_an_operator_stops_a_rollout_and_lets_it_go_on(
    database: Database, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    async with devices(broker, database) as running, at_work(hub_of(database, broker, tmp_path)):
        begun = await until(database, "running")
        while not only(database).holder:
            await asyncio.sleep(0.02)
        ask_to_stop(database, begun.rollout_id)
        stopped = await until(database, "stopped")
        saw(database, OLD, 5000, 1000, 250)
        saw(database, NEW, 600, 100, 25)
        reopen(database, begun.rollout_id)
        await until(database, "done")

    assert "stopped by an operator" in stopped.reason
    assert set(running.values()) == {NEW}


@pytest.mark.slow
async def test_a_hub_with_a_key_publishes_what_a_run_has_kept_and_rolls_it_out(
    database: Database, tmp_path: Path
) -> None:
    finished(database, "spring", device_bundle(None))
    generate_key(tmp_path / "key", tmp_path / "public")
    broker = MemoryBroker()
    hub = hub_of(database, broker, tmp_path, key=tmp_path / "key")

    async with devices(broker, database), at_work(hub):
        found = await until(database, "running")

    assert found.plan["started_by"] == "by the hub, after run spring"
    assert (tmp_path / "models" / found.version / "manifest.json").exists()
    with database.read() as connection:
        made = [each.round_id for each in catalog.versions(connection)]
    assert made[0] == "spring"


def test_a_hub_that_shall_roll_out_must_know_where_devices_fetch() -> None:
    with pytest.raises(ValidationError, match=r"by_itself needs rollout\.source"):
        RolloutSettings(by_itself=True)


async def retained(broker: MemoryBroker, node: str) -> int:
    """The number of what was last desired of a node."""
    transport = broker.connect("looker")
    async with transport.subscribe(topics.desired(NodeId(node)), qos=1, limit=10) as arrivals:
        async for inbound in arrivals:
            inbound.ack()
            wanted = decode(inbound.payload)
            assert isinstance(wanted, DesiredSettings)
            return wanted.version
    raise AssertionError("nothing was desired")
