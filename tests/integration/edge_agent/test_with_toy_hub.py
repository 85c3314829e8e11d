"""The whole agent and the whole hub with toy models, over each kind of link."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cloud_hub import app as hub_app
from cloud_hub.settings import HubSettings, StoreSettings
from cloud_hub.store import queries
from cloud_hub.store.database import Database
from cloud_hub.store.revision import migrate
from edge_agent.app import Agent, agent
from edge_agent.device import Order
from edge_agent.generate import Outcome, Preview, Progress
from edge_agent.maker import Wish
from edge_agent.settings import AgentSettings, GenerationSettings
from edge_agent.station import open_station
from fleet.decoding.accept import Policy, device_only, verify_all
from fleet.ids import new_id
from fleet.transport.base import Transport, Will
from fleet.transport.embedded import embedded_broker
from fleet.transport.link import FOUR_G, SimulatedLink
from fleet.transport.memory import MemoryBroker
from fleet.transport.mqtt import connect
from simulations.processes import free_port
from tests.integration.cloud_hub.hub import make_hub
from tests.integration.edge_agent.toy_hub_device import (
    CAPTION,
    PREFIX,
    WORDS,
    HubToyDevice,
    expected,
)
from tests.unit.cloud_hub.toy import SAMPLING, cloud_only

Connect = Callable[[str, Will | None], AbstractAsyncContextManager[Transport]]
POLICIES: dict[str, Policy] = {
    "ciar": Policy("entropy", 0.5),
    "verify-all": verify_all(),
    "device-only": device_only(),
}


class Quiet:
    """A caller who does not look."""

    def queued(self, ahead: int) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass

    def preview(self, preview: Preview) -> None:
        pass


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with Database(f"sqlite:///{tmp_path / 'hub.db'}") as found:
        migrate(found)
        yield found


@pytest.fixture(params=["memory", "4g", "mqtt"])
async def link(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """How hub and device reach each other; only the device is behind the slow link."""
    if request.param == "mqtt":
        async with embedded_broker(free_port()) as broker:
            yield lambda name, will: connect(broker, client_id=name, will=will)
        return
    memory = MemoryBroker()

    @asynccontextmanager
    async def reach(name: str, will: Will | None) -> AsyncIterator[Transport]:
        async with memory.connect(name, will) as plain:
            if request.param == "memory" or name != "node":
                yield plain
                return
            async with SimulatedLink(plain, FOUR_G, Random(1)) as slow:
                yield slow

    yield reach


@asynccontextmanager
async def serving(link: Connect, hub: hub_app.Hub) -> AsyncIterator[None]:
    settings = HubSettings(store=StoreSettings(batch_wait_s=0.01))
    is_ready = asyncio.Event()
    async with link(f"hub-{new_id()}", hub.identity.will) as transport:
        task = asyncio.create_task(
            hub_app.serve(settings, transport, hub, ready=is_ready.set), name="hub"
        )
        try:
            await is_ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def joined(link: Connect, folder: Path, **generation: Any) -> AsyncIterator[Agent]:
    values = {"retry_after_s": 0.3, "request_deadline_s": 2.0, "open_deadline_s": 3.0}
    settings = AgentSettings(
        state_dir=folder / "state", generation=GenerationSettings(**{**values, **generation})
    )
    with open_station(settings.state_path, "node", patience_s=0) as station:
        async with (
            link("node", None) as transport,
            agent(settings, station, HubToyDevice(), transport, lambda _: None) as running,
        ):
            yield running


async def made(agent: Agent, policy: str, seed: int) -> Outcome:
    outcome, note = await agent.maker.make(Wish(CAPTION, seed, policy), Quiet())
    assert ("", "") == (note, outcome.fallback)
    return outcome


def order(seed: int, policy: str) -> Order:
    prefix = 0 if policy == "device-only" else PREFIX
    return Order(CAPTION, seed, SAMPLING, POLICIES[policy], prefix, True)


def tokens(outcome: Outcome) -> list[int]:
    return [int(token) for token in outcome.picture.tokens]


@pytest.mark.parametrize("policy", ["ciar", "verify-all", "device-only"])
async def test_agent_and_hub_make_the_picture_of_the_simplest_rule(
    link: Connect, database: Database, tmp_path: Path, policy: str
) -> None:
    async with serving(link, make_hub(database)), joined(link, tmp_path) as running:
        found = {seed: tokens(await made(running, policy, seed)) for seed in range(4)}

    assert {seed: expected(order(seed, policy)) for seed in range(4)} == found


async def test_verify_all_is_the_cloud_s_own_picture(
    link: Connect, database: Database, tmp_path: Path
) -> None:
    async with serving(link, make_hub(database)), joined(link, tmp_path) as running:
        outcome = await made(running, "verify-all", 9)

    assert cloud_only(WORDS, 9) == tokens(outcome)


async def test_the_cloud_can_ignore_interval_features(
    link: Connect, database: Database, tmp_path: Path
) -> None:
    async with (
        serving(link, make_hub(database)),
        joined(link, tmp_path, use_features=False) as running,
    ):
        outcome = await made(running, "ciar", 4)

    assert expected(replace(order(4, "ciar"), use_features=False)) == tokens(outcome)


async def test_a_hub_that_is_replaced_in_the_middle_changes_nothing(
    link: Connect, database: Database, tmp_path: Path
) -> None:
    async with joined(link, tmp_path, window=2) as running:
        for seed in range(3):
            async with serving(link, make_hub(database)):
                making = asyncio.create_task(made(running, "verify-all", seed))
                while running.maker.settled < 6 + seed and not making.done():
                    await asyncio.sleep(0)
            async with serving(link, make_hub(database)):
                outcome = await making

            assert expected(order(seed, "verify-all")) == tokens(outcome)


async def test_each_picture_is_one_row_once(
    link: Connect, database: Database, tmp_path: Path
) -> None:
    async with serving(link, make_hub(database)), joined(link, tmp_path) as running:
        outcomes = [await made(running, "ciar", seed) for seed in range(5)]
        assert await running.delivery.flush(10)

    with database.read() as connection:
        rows = queries.pictures(connection)
    assert sorted(outcome.generation for outcome in outcomes) == sorted(
        row.generation_id for row in rows
    )
    by_name = {row.generation_id: row for row in rows}
    for outcome in outcomes:
        tally, row = outcome.picture.tally, by_name[outcome.generation]
        assert (tally.local, tally.verified, tally.corrected) == (
            row.local,
            row.verified,
            row.corrected,
        )
        assert row.bytes_up == outcome.meter.bytes_up > 0


async def test_records_made_without_a_hub_arrive_when_there_is_one(
    link: Connect, database: Database, tmp_path: Path
) -> None:
    async with joined(link, tmp_path) as running:
        await made(running, "device-only", 1)
        assert 1 == (await running.delivery.spool()).records
    async with serving(link, make_hub(database)), joined(link, tmp_path) as running:
        assert await running.delivery.flush(15)

    with database.read() as connection:
        assert 1 == len(queries.pictures(connection))
