"""A rollout over the settings from afar: canaries first, and what they do decides by itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from cloud_hub import desired
from cloud_hub.rollout import controller
from cloud_hub.rollout.controller import Rollout, Wish
from cloud_hub.rollout.plan import canaries
from cloud_hub.store.database import Database, insert_new
from cloud_hub.store.revision import migrate
from cloud_hub.store.sums import HOUR_S, Sums, hour_of
from cloud_hub.store.tables import CheckSumRow, NodeRow, RolloutNodeRow, RolloutRow, SumRow
from fleet.errors import InvalidInputError
from fleet.ids import BootId, NodeId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import DesiredSettings, ReportedSettings
from fleet.transport.memory import MemoryBroker

NODES = [NodeId(f"node-{letter}") for letter in "abcd"]
OLD, NEW = "0" * 16, "1" * 16
WISH = Wish(NEW, "http://hub/models", share=0.25, least=500)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(controller, "LOOK_S", 0.02)
    monkeypatch.setattr(desired, "RETAINED_S", 0.02)
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
        yield made


def saw(database: Database, version: str, judged: int, corrected: int, mismatched: int) -> None:
    """What devices on a version did in this hour; as many tokens were checked as judged."""
    span = (hour_of(datetime.now(UTC)), HOUR_S, "n", version, "c", "ciar")
    sums = Sums()
    sums.add(SumRow, span, (), {"verified": judged, "corrected": corrected})
    sums.add(CheckSumRow, span, (0, 0), {"checked": judged, "mismatched": mismatched})
    with database.write() as connection:
        sums.write(connection)


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


async def test_a_canary_that_does_well_is_followed_by_all(database: Database) -> None:
    saw(database, OLD, 5000, 1000, 250)
    saw(database, NEW, 600, 100, 25)
    broker, told = MemoryBroker(), list[str]()

    async with devices(broker, database) as running:
        transport = broker.connect("operator")
        decision = await Rollout(transport, database, "r1", WISH, told.append).run()

    assert decision.step == "widen"
    assert set(running.values()) == {NEW}
    state, nodes = states(database)
    assert (state, set(nodes)) == ("done", set(NODES))
    assert any("widen: no rate is surely worse" in line for line in told)


async def test_a_canary_that_does_worse_is_taken_back_and_nobody_else_had_it(
    database: Database,
) -> None:
    saw(database, OLD, 5000, 1000, 250)
    saw(database, NEW, 300, 200, 20)
    broker = MemoryBroker()
    (canary,) = canaries(NODES, NEW, WISH.share)

    async with devices(broker, database) as running:
        transport = broker.connect("operator")
        decision = await Rollout(transport, database, "r1", WISH, lambda _: None).run()

    assert decision.step == "roll back"
    assert set(running.values()) == {OLD}
    assert states(database) == ("rolled_back", {canary: "rolled_back"})


async def test_a_canary_that_cannot_run_it_is_reason_enough(database: Database) -> None:
    broker = MemoryBroker()

    async with devices(broker, database, fails="it gives no numbers") as running:
        transport = broker.connect("operator")
        decision = await Rollout(transport, database, "r1", WISH, lambda _: None).run()

    assert decision.step == "roll back"
    assert "it gives no numbers" in decision.why
    assert set(running.values()) == {OLD}


async def test_without_devices_there_is_nothing_to_try_it_on(database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(NodeRow).values(state="lost"))

    with pytest.raises(InvalidInputError, match="no device is up"):
        await Rollout(
            MemoryBroker().connect("operator"), database, "r1", WISH, lambda _: None
        ).run()
