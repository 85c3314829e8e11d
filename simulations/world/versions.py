"""Versions of a world's devices, and their rollout by the hub's own controller."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from cloud_hub.rollout.controller import Wish, begin, take_up
from cloud_hub.store import catalog
from cloud_hub.store.database import Database
from cloud_hub.store.rollouts import Rollout
from edge_agent.app import Versions
from edge_agent.model_store import ModelStore, Signed
from fleet.errors import BundleError, FleetError
from fleet.ids import ModelVersion
from fleet.transport.base import Transport
from fleet.transport.memory import MemoryBroker
from simulations.history.events import History
from simulations.scenarios.faults import BadRollout
from simulations.scenarios.scenario import Scenario
from simulations.stand_in import FAMILY, StandInDevice

_NOWHERE = Path("nowhere")
_STEPS = {"done": "widen", "rolled_back": "roll back"}
_SOURCE = "http://127.0.0.1/models"  # nothing is fetched from it


def bad_version(index: int) -> ModelVersion:
    """The version that the scenario's fault of that number rolls out."""
    return ModelVersion(f"{index + 1:016x}")


def devices_by_version(
    scenario: Scenario, device: StandInDevice
) -> dict[ModelVersion, StandInDevice]:
    """A device as it is and as each bad rollout would make it."""
    found = {device.version: device}
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, BadRollout):
            version = bad_version(index)
            found[version] = device.worse(version, fault.acceptance)
    return found


class StandInStore(ModelStore):
    """A store that has all versions, without files."""

    def __init__(self, devices: Mapping[ModelVersion, StandInDevice]) -> None:
        """`devices` by version; the first is what the device came with."""
        base = Signed(_NOWHERE, _NOWHERE, next(iter(devices.values())).manifest)
        super().__init__(_NOWHERE, base, _NOWHERE)
        self._devices = devices

    def get(self, version: ModelVersion, source: str) -> Signed:  # noqa: ARG002  # all are here
        """See `ModelStore.get`."""
        if version not in self._devices:
            raise BundleError(f"there is no version {version} in this world")
        return Signed(_NOWHERE, _NOWHERE, self._devices[version].manifest)

    def load(self, signed: Signed) -> StandInDevice:
        """The device of a version."""
        return self._devices[signed.manifest.device_version]

    @property
    def versions(self) -> Versions:
        """What an agent is given."""
        return Versions(self, self.load)


class Rollouts:
    """Rolls versions out as an operator does, with a link of its own."""

    def __init__(self, broker: MemoryBroker, database: Database, history: History) -> None:
        self._broker, self._database, self._history = broker, database, history

    @asynccontextmanager
    async def of(self, fault: BadRollout, version: ModelVersion) -> AsyncIterator[None]:
        """A rollout that begins now and is over, with its decision, when the context ends."""
        wish = Wish(version, _SOURCE, fault.canaries, fault.least, fault.for_s)
        self._history.say("rollout", version=version, state="begins")
        async with self._broker.connect("operator") as transport:
            running = asyncio.create_task(self._conduct(transport, wish), name=f"rollout {version}")
            try:
                yield
                done = await running
            except FleetError as error:
                step, why = "failed", type(error).__name__
            else:
                step, why = _STEPS.get(done.state, done.state), done.reason
            finally:
                running.cancel()
                await asyncio.wait([running])
        self._history.say("rollout", version=version, state="ends", step=step, why=why)

    async def _conduct(self, transport: Transport, wish: Wish) -> Rollout:
        rollout_id = f"r-{wish.version}"
        made = catalog.Version(wish.version, "device", FAMILY, "", "", datetime.now(UTC), {})
        with self._database.write() as connection:
            catalog.add(connection, made)
        begin(self._database, rollout_id, wish, "by a scenario")
        return await take_up(transport, self._database, rollout_id)
