"""The device at the version that the operator wants: fetched, tested, run between pictures."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Device, Drafter, Order
from edge_agent.model_store import ModelStore, Signed
from fleet.errors import CapacityError, FleetError, TransportError
from fleet.ids import ModelVersion
from fleet.logs import get_logger
from fleet.models.bundle import Manifest

RETRY_S = 60.0  # until a source that could not be reached is tried again

log = get_logger(__name__)


class Replaceable:
    """A device whose model may be replaced while nobody draws: a `Device` itself."""

    def __init__(self, device: Device) -> None:
        self.present = device

    def take(self, device: Device) -> None:
        """Runs another model from now on; the caller sees to it that nobody draws."""
        self.present = device

    @property
    def manifest(self) -> Manifest:
        """See `Device`."""
        return self.present.manifest

    @property
    def size(self) -> int:
        """See `Device`."""
        return self.present.size

    @property
    def vocab_size(self) -> int:
        """See `Device`."""
        return self.present.vocab_size

    @property
    def keeps_states(self) -> bool:
        """See `Device`."""
        return self.present.keeps_states

    def check(self, caption: str) -> None:
        """See `Device`."""
        self.present.check(caption)

    def begin(self, order: Order) -> Drafter:
        """See `Device`."""
        return self.present.begin(order)

    def quantise(self, features: NDArray[np.float32]) -> NDArray[np.int8]:
        """See `Device`."""
        return self.present.quantise(features)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """See `Device`."""
        return self.present.decode(tokens)


class Updates:
    """Follows the wanted version; what cannot be had leaves the present one in force."""

    def __init__(
        self,
        store: ModelStore,
        load: Callable[[Signed], Device],  # tests what it loads; blocks
        replace: Callable[[Signed, Device], Awaitable[None]],  # between pictures
        tell: Callable[[str], None],
    ) -> None:
        self._store, self._load, self._replace, self._tell = store, load, replace, tell
        self._wanted = (self._base, "")
        self._present = self._base
        self._changed = asyncio.Event()

    def want(self, version: str, source: str) -> None:
        """Wants a version from a source; an empty one is the bundle that the device came with."""
        wanted = (ModelVersion(version) if version else self._base, source)
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self) -> None:
        """Brings the device to what is wanted, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            retry = await self._bring(*self._wanted)
            if retry:
                try:
                    async with asyncio.timeout(RETRY_S):
                        await self._changed.wait()
                except TimeoutError:
                    self._changed.set()

    async def _bring(self, version: ModelVersion, source: str) -> bool:
        """Whether to try again."""
        if version == self._present:
            self._tell("")
            return False
        try:
            self._tell(f"fetching {version}")
            signed = await asyncio.to_thread(self._store.get, version, source)
            device = await asyncio.to_thread(self._load, signed)
            await self._replace(signed, device)
        except FleetError as error:
            log.warning("model not activated", version=version, reason=str(error))
            self._tell(f"{version} failed: {error}"[:512])
            return isinstance(error, TransportError | CapacityError)
        self._present = version
        self._tell("")
        log.info("model activated", version=version)
        return False

    @property
    def _base(self) -> ModelVersion:
        return self._store.base.manifest.device_version
