"""A hub and agents in this process, on the shipped models or on stand-ins: what benches measure."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from cloud_hub.app import Hub, open_hub, serve
from cloud_hub.settings import EngineSettings, HubSettings
from cloud_hub.store import revision
from cloud_hub.store.database import Database
from edge_agent.app import Agent, agent, load_device, presence_of
from edge_agent.device import Device
from edge_agent.generate import Preview, Progress
from edge_agent.settings import AgentSettings, GenerationSettings
from edge_agent.station import open_station
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY
from fleet.transport.link import LinkProfile, SimulatedLink
from fleet.transport.memory import MemoryBroker
from simulations.stand_in import VOCABULARY, Pair, StandInDevice, StandInRunner, stand_in_hub

_DEADLINE_S = 900.0
_START_S = 60.0


class Silent:
    """A `Report` that nobody reads."""

    def queued(self, ahead: int) -> None:
        """See `Report`."""

    def progress(self, progress: Progress) -> None:
        """See `Report`."""

    def preview(self, preview: Preview) -> None:
        """See `Report`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent lives: its models, its state folder, its broker and the network to it."""

    models: Path
    folder: Path
    broker: MemoryBroker
    link: LinkProfile


@asynccontextmanager
async def hub_beside(
    models: Path, folder: Path, broker: MemoryBroker, pair: Pair | None = None
) -> AsyncIterator[None]:
    """A hub that listens, on the cloud model in `models` or on that of a pair.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
    """
    settings = HubSettings(
        data_dir=folder, model=models / CLOUD_FOLDER, engine=EngineSettings(threads=1)
    )
    hub = _open(settings, pair)
    ready = asyncio.Event()
    async with broker.connect("hub") as transport:
        task = asyncio.create_task(serve(settings, transport, hub, ready=ready.set), name="hub")
        try:
            async with asyncio.timeout(_START_S):
                await ready.wait()
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            hub.close()


@asynccontextmanager
async def agent_beside(
    place: Place, generation: Mapping[str, object], pair: Pair | None = None
) -> AsyncIterator[Agent]:
    """An agent at work, on the device model in the place's models or on that of a pair."""
    settings = AgentSettings(
        state_dir=place.folder,
        bundle=place.models / DEVICE_FOLDER,
        public_key=place.models / PUBLIC_KEY,
        generation=GenerationSettings.model_validate({"deadline_s": _DEADLINE_S, **generation}),
    )
    device: Device = StandInDevice(pair) if pair else load_device(settings)
    name = place.folder.name
    with open_station(place.folder, name, patience_s=0) as station:
        will = presence_of(station, device.manifest).will()
        async with (
            place.broker.connect(name, will) as transport,
            SimulatedLink(transport, place.link, Random(0)) as link,
            agent(settings, station, device, link, lambda _: None) as running,
        ):
            yield running


def _open(settings: HubSettings, pair: Pair | None) -> Hub:
    if pair is None:
        return open_hub(settings)
    database = Database(settings.store_url)
    revision.prepare(database, create=True)
    return stand_in_hub(StandInRunner(pair), VOCABULARY, database)
