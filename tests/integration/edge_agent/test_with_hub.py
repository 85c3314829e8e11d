"""The real agent and the real hub with the shipped models, joined by the in-memory broker."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cloud_hub import app as hub_app
from cloud_hub.settings import EngineSettings, HubSettings
from cloud_hub.store import queries
from edge_agent.app import Agent, agent, load_device
from edge_agent.device import Device
from edge_agent.generate import Outcome, Progress
from edge_agent.maker import Wish
from edge_agent.settings import AgentSettings, GenerationSettings, PolicyName
from edge_agent.station import open_station
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, reference_path
from fleet.transport.link import FOUR_G, LinkProfile, SimulatedLink
from fleet.transport.memory import MemoryBroker

pytestmark = pytest.mark.timeout(120)

FAMILY = reference_path()
CAPTION = "google: red heart"
PATIENT: dict[str, Any] = {
    "deadline_s": 110.0,
    "open_deadline_s": 100.0,
    "request_deadline_s": 60.0,
    "retry_after_s": 20.0,
    "outage_patience_s": 100.0,
}

WAYS: list[dict[str, Any]] = [
    {"window": 1, "in_flight": 1, "chunk": 1},  # stop and wait
    {"window": 64, "in_flight": 16, "chunk": 3},
    {"profile": FOUR_G, "retry_after_s": 0.5},
]


class Quiet:
    """A caller who does not look."""

    def queued(self, ahead: int) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


@pytest.fixture(scope="module")
def device() -> Device:
    return load_device(AgentSettings(bundle=FAMILY / DEVICE_FOLDER, public_key=FAMILY / PUBLIC_KEY))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hub_app.Hub]:
    settings = hub_settings(tmp_path_factory.mktemp("hub"))
    found = hub_app.open_hub(settings)
    yield found
    found.database.close()


def hub_settings(folder: Path) -> HubSettings:
    return HubSettings(
        data_dir=folder,
        model=FAMILY / CLOUD_FOLDER,
        engine=EngineSettings(cache_mib=64, threads=1),
    )


@asynccontextmanager
async def serving(broker: MemoryBroker, hub: hub_app.Hub, folder: Path) -> AsyncIterator[None]:
    is_ready = asyncio.Event()
    async with broker.connect("hub", hub.identity.will) as transport:
        work = hub_app.serve(hub_settings(folder), transport, hub, ready=is_ready.set)
        task = asyncio.create_task(work, name="hub")
        try:
            await is_ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


@asynccontextmanager
async def joined(
    broker: MemoryBroker,
    device: Device,
    folder: Path,
    *,
    profile: LinkProfile | None = None,
    **generation: Any,
) -> AsyncIterator[Agent]:
    settings = AgentSettings(
        state_dir=folder / "state", generation=GenerationSettings(**{**PATIENT, **generation})
    )
    with open_station(settings.state_path, "node", patience_s=0) as station:
        async with broker.connect("node") as plain:
            if profile is None:
                async with agent(settings, station, device, plain, lambda _: None) as running:
                    yield running
                return
            async with (
                SimulatedLink(plain, profile, Random(1)) as link,
                agent(settings, station, device, link, lambda _: None) as running,
            ):
                yield running


async def made(agent: Agent, policy: PolicyName, seed: int = 7) -> Outcome:
    outcome, note = await agent.maker.make(Wish(CAPTION, seed, policy), Quiet())
    assert ("", "") == (note, outcome.fallback)
    return outcome


def tokens(outcome: Outcome) -> list[int]:
    return [int(token) for token in outcome.picture.tokens]


async def test_verify_all_is_the_cloud_s_own_picture_token_for_token(
    hub: hub_app.Hub, device: Device, tmp_path: Path
) -> None:
    broker = MemoryBroker()

    async with serving(broker, hub, tmp_path):
        async with joined(broker, device, tmp_path, prefix_tokens=device.size) as alone:
            cloud_only = await made(alone, "verify-all")
        async with joined(broker, device, tmp_path) as together:
            verified = await made(together, "verify-all")

    assert device.size == cloud_only.picture.tally.prefix
    assert device.size - device.manifest.prefix_tokens == verified.picture.tally.verified
    assert tokens(cloud_only) == tokens(verified)
    assert (cloud_only.image == verified.image).all()


async def test_the_picture_does_not_depend_on_window_depth_or_link(
    hub: hub_app.Hub, device: Device, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    found = []

    async with serving(broker, hub, tmp_path):
        for settings in WAYS:
            async with joined(broker, device, tmp_path, **settings) as running:
                found.append(await made(running, "ciar"))

    assert tokens(found[0]) == tokens(found[1]) == tokens(found[2])
    assert found[0].picture.tally == found[1].picture.tally == found[2].picture.tally
    assert found[0].picture.tally.local > 0
    assert found[0].picture.tally.verified > 0


async def test_a_hub_that_starts_anew_in_the_middle_changes_nothing(
    hub: hub_app.Hub, device: Device, tmp_path: Path
) -> None:
    broker = MemoryBroker()
    quick: dict[str, Any] = {"request_deadline_s": 2.0, "retry_after_s": 0.5}

    async with serving(broker, hub, tmp_path), joined(broker, device, tmp_path) as running:
        whole = await made(running, "ciar", seed=11)
    async with joined(broker, device, tmp_path, **quick) as running:
        async with serving(broker, hub, tmp_path):
            making = asyncio.create_task(made(running, "ciar", seed=11))
            while running.maker.settled < 60 and not making.done():
                await asyncio.sleep(0.001)
        async with serving(broker, hub, tmp_path):
            interrupted = await making

    assert tokens(whole) == tokens(interrupted)
    assert interrupted.meter.reopened >= 1


async def test_a_picture_becomes_one_row_of_the_hub(
    hub: hub_app.Hub, device: Device, tmp_path: Path
) -> None:
    broker = MemoryBroker()

    async with serving(broker, hub, tmp_path), joined(broker, device, tmp_path) as running:
        outcome = await made(running, "ciar", seed=5)
        assert await running.delivery.flush(20)

    with hub.database.read() as connection:
        rows = [
            row
            for row in queries.pictures(connection, limit=1000)
            if row.generation_id == outcome.generation
        ]
    assert 1 == len(rows)


async def test_device_only_opens_nothing(hub: hub_app.Hub, device: Device, tmp_path: Path) -> None:
    broker = MemoryBroker()

    async with serving(broker, hub, tmp_path), joined(broker, device, tmp_path) as running:
        outcome = await made(running, "device-only")

    assert device.size == outcome.picture.tally.local
    assert (0, 0) == (outcome.meter.round_trips, outcome.meter.bytes_up)
