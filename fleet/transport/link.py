"""A simulated network link around a transport: delay, jitter, bandwidth, loss, outages.

Payloads of one direction keep their order, as on TCP. A lost QoS 0 payload is gone; a lost
QoS 1 payload is sent again by TCP and comes a round trip later, with all that follow. Time is
the event loop's, and all randomness the caller's `rng`, so a seeded run repeats. Headers count
`HEADER_BYTES` a payload; acknowledgements take no bandwidth.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any, Self

from fleet.errors import TransportError
from fleet.transport.base import Inbound, QoS, Transport
from fleet.transport.fanout import Counters, Subscription
from fleet.transport.lane import Direction, Lane

BACK_S = 0.5  # after which a link is back that broke at its limit
_ACK_BYTES = 4


@dataclass(frozen=True, slots=True)
class Outage:
    """A time without network, in seconds since the link began."""

    begin_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """What a network does to payloads; each direction takes half the round trip."""

    name: str
    up_mbps: float
    down_mbps: float
    round_trip_s: float
    jitter_s: float  # each direction adds up to this, uniformly
    loss: float = 0.0  # probability for each payload in each direction
    outages: tuple[Outage, ...] = ()


WIFI = LinkProfile("wifi", 100, 200, 0.005, 0.002)
FIVE_G = LinkProfile("5g", 50, 200, 0.020, 0.005)
FOUR_G = LinkProfile("4g", 10, 30, 0.050, 0.015, loss=0.01)
SATELLITE = LinkProfile("satellite", 10, 50, 0.600, 0.020)
PROFILES = {profile.name: profile for profile in (WIFI, FIVE_G, FOUR_G, SATELLITE)}


@dataclass(slots=True)
class LinkCounters(Counters):
    """What a simulated link has done."""

    lost_up: int = 0
    lost_down: int = 0
    bytes_up: int = 0  # payloads and topics, without headers
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class _Upward:
    topic: str
    payload: bytes
    qos: QoS
    retain: bool
    expiry_s: float | None
    done: "asyncio.Future[None] | None"  # QoS 1: whoever waits for the broker


class SimulatedLink:
    """A `Transport` behind a network: `async with SimulatedLink(transport, FOUR_G, rng)`."""

    def __init__(self, transport: Transport, profile: LinkProfile, rng: Random) -> None:
        self.profile = profile
        self.counters = LinkCounters()
        half_s, jitter_s, loss = profile.round_trip_s / 2, profile.jitter_s, profile.loss
        self._up = Direction(profile.up_mbps, half_s, jitter_s, loss, rng)
        self._down = Direction(profile.down_mbps, half_s, jitter_s, loss, rng)
        self._inner = transport
        self._mended, self._cut = asyncio.Event(), asyncio.Event()
        self._mended.set()
        self._is_swallowed = False
        self._limit: int | None = None
        self._left = 0  # bytes until the link breaks, where it has a limit
        self._lane: Lane[_Upward] = Lane(self._deliver_up)
        self._tasks: list[asyncio.Task[None]] = []

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: QoS,
        retain: bool = False,
        expiry_s: float | None = None,
    ) -> None:
        """See `Transport.publish`; QoS 0 returns when the payload is on its way."""
        loop = asyncio.get_running_loop()
        if not self.is_connected:
            raise TransportError("the link to the broker is down")
        size = len(topic) + len(payload)
        self.counters.bytes_up += size
        if self._breaks_in(size):
            self.counters.lost_up += not qos
            raise TransportError("the link to the broker broke in the midst of a payload")
        arrival = self._up.arrival(loop.time(), size, qos)
        if arrival is None:
            self.counters.lost_up += 1
            return
        done = loop.create_future() if qos else None
        await self._lane.put(arrival, _Upward(topic, payload, qos, retain, expiry_s, done))
        if done is not None:
            await done
            await asyncio.sleep(self.profile.round_trip_s / 2)  # the acknowledgement's way back
            if self._breaks_in(_ACK_BYTES):
                raise TransportError("the link to the broker broke before its acknowledgement")

    @asynccontextmanager
    async def subscribe(
        self, *filters: str, qos: QoS, limit: int
    ) -> AsyncIterator[AsyncIterator[Inbound]]:
        """See `Transport.subscribe`."""
        subscription = Subscription(filters, qos, limit, self._count_drop)

        async def hand_over(inbound: Inbound) -> None:
            await self._hold_while_cut(inbound, subscription)

        lane = Lane(hand_over)
        async with self._inner.subscribe(*filters, qos=qos, limit=limit) as arrivals:
            names = f"{self.profile.name} down {' '.join(filters)}"
            tasks = [
                asyncio.create_task(self._receive(arrivals, lane), name=f"{names} in"),
                asyncio.create_task(lane.run(), name=f"{names} out"),
            ]
            try:
                yield subscription
            finally:
                await _stop(tasks)
                subscription.close()

    @property
    def is_connected(self) -> bool:
        """See `Transport.is_connected`."""
        return (self._mended.is_set() or self._is_swallowed) and self._inner.is_connected

    async def wait_connected(self, connected: bool = True) -> None:
        """See `Transport.wait_connected`."""
        while self.is_connected != connected:
            if connected:
                await self._mended.wait()
                await self._inner.wait_connected()
            else:
                await _first(self._cut.wait(), self._inner.wait_connected(False))

    def cut(self, *, silently: bool = False) -> None:
        """The network is gone: what is on its way at QoS 0 is lost, publishes are refused.

        Silently: neither end notices, so publishes at QoS 1 wait for the network instead.
        """
        self._mended.clear()
        self._is_swallowed = silently
        if not silently:
            self._cut.set()

    def mend(self) -> None:
        """The network is back."""
        self._is_swallowed = False
        self._cut.clear()
        self._mended.set()

    def limit(self, size: int | None) -> None:
        """Breaks the link after each `size` bytes of payloads and acknowledgements, either way.

        What the last of them is part of is lost as on a broken TCP connection: a payload does not
        arrive, or it arrives and its sender does not hear of it. The link is back after `BACK_S`.
        None: no limit any more.
        """
        self._limit = size
        self._left = size or 0

    def stretch(self, times: float) -> None:
        """Makes round trips and jitter so many times as long as the profile says."""
        for direction in (self._up, self._down):
            direction.delay_s = self.profile.round_trip_s / 2 * times
            direction.jitter_s = self.profile.jitter_s * times

    async def __aenter__(self) -> Self:
        name = f"link {self.profile.name}"
        self._tasks = [
            asyncio.create_task(self._lane.run(), name=f"{name} up"),
            asyncio.create_task(self._suffer_outages(), name=f"{name} outages"),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _stop(self._tasks)
        for item in self._lane.left_over():
            _fail(item.done, "the link was closed")

    # ── Tasks ─────────────────────────────────────────────────────────────────────────────

    async def _deliver_up(self, item: _Upward) -> None:
        if self._is_swallowed and item.qos:
            await self._mended.wait()
        if not self._mended.is_set():
            self.counters.lost_up += not item.qos
            _fail(item.done, "the link to the broker went down")
            return
        try:
            await self._inner.publish(
                item.topic,
                item.payload,
                qos=item.qos,
                retain=item.retain,
                expiry_s=item.expiry_s,
            )
        except TransportError as error:
            self.counters.lost_up += not item.qos
            _fail(item.done, str(error))
        else:
            if item.done is not None and not item.done.done():
                item.done.set_result(None)

    async def _receive(self, arrivals: AsyncIterator[Inbound], lane: "Lane[Inbound]") -> None:
        async for inbound in arrivals:
            size = len(inbound.topic) + len(inbound.payload)
            arrival = self._down.arrival(asyncio.get_running_loop().time(), size, inbound.qos)
            if arrival is None:
                self.counters.lost_down += 1
                continue
            self.counters.bytes_down += size
            if self._breaks_in(size) and not inbound.qos:
                self.counters.lost_down += 1
                continue
            await lane.put(arrival, inbound)

    async def _hold_while_cut(self, inbound: Inbound, subscription: Subscription) -> None:
        if not self._mended.is_set() and not inbound.qos:
            self.counters.lost_down += 1
            return
        await self._mended.wait()
        subscription.put(inbound)

    async def _suffer_outages(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for outage in self.profile.outages:
            await asyncio.sleep(begin + outage.begin_s - loop.time())
            self.cut()
            await asyncio.sleep(outage.length_s)
            self.mend()

    def _breaks_in(self, size: int) -> bool:
        """Whether the link's limit falls among the next bytes; if so it breaks."""
        if self._limit is None or not self._mended.is_set():
            return False
        self._left -= size
        if self._left >= 0:
            return False
        self._left = self._limit
        self.cut()
        asyncio.get_running_loop().call_later(BACK_S, self.mend)
        return True

    def _count_drop(self) -> None:
        self.counters.dropped += 1


def _fail(done: "asyncio.Future[None] | None", sentence: str) -> None:
    if done is not None and not done.done():
        done.set_exception(TransportError(sentence))


async def _stop(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Returns when one of `waits` does, and cancels the others."""
    tasks = [asyncio.create_task(wait, name="link state") for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _stop(tasks)
