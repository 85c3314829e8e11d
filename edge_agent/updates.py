"""The device at the version that the operator wants: fetched, tested, run between pictures."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Device, Drafter, Order
from edge_agent.model_store import DamagedError, ModelStore, Signed
from fleet.errors import CapacityError, FleetError, TransportError
from fleet.ids import ModelVersion
from fleet.logs import get_logger
from fleet.models.bundle import Manifest

RETRY_S = 60.0  # until a version that could not be had is tried again; then twice as long …
RETRY_CAP_S = 3600.0  # … up to this
MOST_FETCHES = 5  # of a version that comes damaged

_TEXT_LIMIT = 512

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

    def wants(self, caption: str) -> bool:
        """See `Device`."""
        return self.present.wants(caption)

    def tell(self, caption: str, condition: bytes) -> None:
        """See `Device`."""
        self.present.tell(caption, condition)

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
        tries, wait_s = 0, 0.0
        while True:
            try:
                async with asyncio.timeout(wait_s or None):
                    await self._changed.wait()
                tries = 0
                self._changed.clear()
            except TimeoutError:
                pass  # what is wanted is still so
            tries += 1
            wait_s = await self._bring(*self._wanted, tries)

    async def _bring(self, version: ModelVersion, source: str, tries: int) -> float:
        """Seconds until it is tried again; 0: when something else is wanted."""
        if version == self._present:
            self._tell("")
            return 0.0
        try:
            self._tell(f"fetching {version}")
            signed = await asyncio.to_thread(self._store.get, version, source)
            device = await asyncio.to_thread(self._load, signed)
            await self._replace(signed, device)
        except FleetError as error:
            wait_s, what = _patience(error, tries)
            log.warning("model not activated", version=version, reason=str(error), then=what)
            self._tell(f"{version} failed: {error}"[: _TEXT_LIMIT - len(what) - 2] + f"; {what}")
            return wait_s
        self._present = version
        self._tell("")
        log.info("model activated", version=version)
        return 0.0

    @property
    def _base(self) -> ModelVersion:
        return self._store.base.manifest.device_version


def _patience(error: FleetError, tries: int) -> tuple[float, str]:
    """Seconds until the next try after so many, and how that is told; 0: there is none."""
    wait_s = min(RETRY_S * 2 ** (tries - 1), RETRY_CAP_S)
    match error:
        case DamagedError() if tries >= MOST_FETCHES:
            return 0.0, f"given up after {tries} fetches"
        case DamagedError():
            return wait_s, f"fetch {tries} of {MOST_FETCHES}, again in {wait_s:g} s"
        case TransportError() | CapacityError():
            return wait_s, f"again in {wait_s:g} s"
        case _:
            return 0.0, "not tried again"
