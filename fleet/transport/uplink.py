"""Keeps one link to a broker up: connects, subscribes again after each loss, backs off.

It knows no MQTT library; `mqtt.py` opens the links.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from fleet.errors import TransportError
from fleet.logs import get_logger
from fleet.transport.base import Inbound, QoS
from fleet.transport.broker import Backoff
from fleet.transport.fanout import Counters, Fanout, check_filters

log = get_logger(__name__)

Deliver = Callable[[Inbound, tuple[str, ...] | None], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a link is over."""

    reason: str
    from_broker: bool = False  # it said so
    taken_over: bool = False  # another client of the same id connected


class Link(Protocol):
    """One connection, from its CONNECT to its end."""

    @property
    def ended(self) -> "asyncio.Future[Ending]":
        """Done when the link is over."""
        ...

    @property
    def filters(self) -> Mapping[str, QoS]:
        """What the broker has granted."""
        ...

    async def publish(
        self, topic: str, payload: bytes, *, qos: QoS, retain: bool, expiry_s: float | None
    ) -> None:
        """See `Transport.publish`."""
        ...

    async def subscribe(self, filters: Mapping[str, QoS]) -> None:
        """Returns when the broker has granted all of them, or raises TransportError."""
        ...

    def unsubscribe(self, filters: Collection[str]) -> None:
        """Tells the broker, and does not wait."""
        ...

    async def goodbye(self) -> None:
        """Ends the link so that the broker publishes no will."""
        ...

    async def abort(self, reason: str) -> None:
        """Ends the link without a goodbye."""
        ...


OpenLink = Callable[[Deliver], Awaitable[Link]]


class Uplink:
    """A `Transport` over links that come and go."""

    def __init__(self, name: str, open_link: OpenLink, backoff: Backoff) -> None:
        self.counters = Counters()
        self._name = name
        self._open_link = open_link
        self._backoff = backoff
        self._fanout = Fanout(self.counters)
        self._link: Link | None = None
        self._changed = {True: asyncio.Event(), False: asyncio.Event()}
        self._changed[False].set()
        self._last_reason = "it has not come up yet"

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: QoS,
        retain: bool = False,
        expiry_s: float | None = None,
    ) -> None:
        """See `Transport.publish`."""
        if self._link is None:
            raise TransportError(f"the link to {self._name} is down: {self._last_reason}")
        await self._link.publish(topic, payload, qos=qos, retain=retain, expiry_s=expiry_s)

    @asynccontextmanager
    async def subscribe(
        self, *filters: str, qos: QoS, limit: int
    ) -> AsyncIterator[AsyncIterator[Inbound]]:
        """See `Transport.subscribe`. While the link is down it is enough to be on the list."""
        check_filters(filters)
        try:
            with self._fanout.open(filters, qos, limit) as subscription:
                if self._link is not None:
                    await self._subscribe_now(self._link, filters)
                yield subscription
        finally:
            unwanted = set(filters) - set(self._fanout.filters)
            if self._link is not None and unwanted:
                self._link.unsubscribe(unwanted)

    @property
    def is_connected(self) -> bool:
        """See `Transport.is_connected`."""
        return self._changed[True].is_set()

    async def wait_connected(self, connected: bool = True) -> None:
        """See `Transport.wait_connected`."""
        await self._changed[connected].wait()

    # ── Life ──────────────────────────────────────────────────────────────────────────────

    async def open(self) -> Link:
        """A new link with every subscription granted.

        Raises:
            TransportError: The broker is not there, or refuses the link or a subscription.
        """
        link = await self._open_link(self._fanout.deliver)
        try:
            while missing := self._missing(link):
                await link.subscribe(missing)
            link.unsubscribe(link.filters.keys() - self._fanout.filters.keys())
        except BaseException:
            await link.abort("its subscriptions were not granted")
            raise
        return link

    def adopt(self, link: Link) -> None:
        """Sends and receives over `link` from now on."""
        self._link = link
        self.counters.connects += 1
        self._set_connected(True)
        log.info("link up", to=self._name)

    async def keep_up(self) -> None:
        """Runs for the transport's life: waits for the link's end, and opens another."""
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            try:
                link = self._link
                if link is None:
                    link = await self.open()
                    self.adopt(link)
                    begin = loop.time()
                ending = await self._end_of(link)
                lived_s = loop.time() - begin
            except TransportError as error:
                ending, lived_s = Ending(str(error)), 0.0
            except Exception as error:
                log.exception("link failed", to=self._name)
                ending, lived_s = Ending(repr(error)), 0.0
            wait_s = self._backoff.wait_s(lived_s=lived_s, taken_over=ending.taken_over)
            # One warning an outage and reason: whoever tries for a night fills no log.
            tell = log.debug if lived_s == 0 and ending.reason == self._last_reason else log.warning
            self._last_reason = ending.reason
            tell("link down", to=self._name, reason=ending.reason, next_try_s=round(wait_s, 2))
            await asyncio.sleep(wait_s)

    async def goodbye(self) -> None:
        """Ends the link for good, politely; after `keep_up` was cancelled."""
        link, self._link = self._link, None
        self._set_connected(False)
        if link is not None:
            await link.goodbye()

    async def _end_of(self, link: Link) -> Ending:
        # Shielded: a cancelled wait must not cancel the link's own future.
        ending = await asyncio.shield(link.ended)
        self._link = None
        self.counters.losses += 1
        self._set_connected(False)
        self._fanout.link_lost()
        await link.abort(ending.reason)
        return ending

    async def _subscribe_now(self, link: Link, filters: Collection[str]) -> None:
        wanted = self._fanout.filters
        try:
            await link.subscribe({pattern: wanted[pattern] for pattern in filters})
        except TransportError:
            if not link.ended.done():
                raise
            # The next link subscribes to everything on the list.

    def _missing(self, link: Link) -> dict[str, QoS]:
        wanted = self._fanout.filters
        return {p: qos for p, qos in wanted.items() if link.filters.get(p) != qos}

    def _set_connected(self, connected: bool) -> None:
        self._changed[connected].set()
        self._changed[not connected].clear()
