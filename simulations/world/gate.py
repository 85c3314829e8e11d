"""A client's link that may be held: what a process that stands still hears and says, later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.transport.base import Inbound, QoS, Transport


class Gate:
    """A `Transport` that hands everything on while it is open, and holds everything while not.

    Nothing is lost and nobody else notices: the broker keeps the link, as it does for a process
    that was stopped, until its keep-alive runs out.
    """

    def __init__(self, transport: Transport) -> None:
        self._inner = transport
        self._is_open = asyncio.Event()
        self._is_open.set()

    def close(self) -> None:
        """Holds all that goes through from now on."""
        self._is_open.clear()

    def open(self) -> None:
        """Lets all through that was held."""
        self._is_open.set()

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
        await self._is_open.wait()
        await self._inner.publish(topic, payload, qos=qos, retain=retain, expiry_s=expiry_s)

    @asynccontextmanager
    async def subscribe(
        self, *filters: str, qos: QoS, limit: int
    ) -> AsyncIterator[AsyncIterator[Inbound]]:
        """See `Transport.subscribe`."""
        async with self._inner.subscribe(*filters, qos=qos, limit=limit) as arrivals:
            yield _Held(arrivals, self._is_open)

    @property
    def is_connected(self) -> bool:
        """See `Transport.is_connected`."""
        return self._inner.is_connected

    async def wait_connected(self, connected: bool = True) -> None:
        """See `Transport.wait_connected`."""
        await self._inner.wait_connected(connected)


class _Held:
    """Arrivals; one that came while the gate was closed waits here, whoever gives up waiting."""

    def __init__(self, arrivals: AsyncIterator[Inbound], is_open: asyncio.Event) -> None:
        self._arrivals, self._is_open = arrivals, is_open
        self._first: Inbound | None = None

    def __aiter__(self) -> "_Held":
        return self

    async def __anext__(self) -> Inbound:
        if self._first is None:
            self._first = await anext(self._arrivals)
        await self._is_open.wait()
        first, self._first = self._first, None
        return first
