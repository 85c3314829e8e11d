"""Brokers of every kind behind one handle: connect, cut, mend, stop and start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any, Protocol

from fleet.transport.base import Transport, Will
from fleet.transport.broker import BrokerSettings
from fleet.transport.embedded import embedded_broker
from fleet.transport.fanout import Counters
from fleet.transport.link import LinkProfile, SimulatedLink
from fleet.transport.memory import MemoryBroker
from fleet.transport.mqtt import connect
from tests.services import Mosquitto, free_port

QUICK = {"reconnect_s": 0.05, "reconnect_cap_s": 0.2, "answer_s": 5.0}


class Client(Transport, Protocol):
    """A transport that counts."""

    @property
    def counters(self) -> Counters:
        """What the link has seen."""
        ...


class Rig(Protocol):
    """One broker and the networks of its clients."""

    async def connect(
        self, client_id: str, *, will: Will | None = None, session_expiry_s: int = 0
    ) -> Client:
        """A client whose link is up; it says goodbye when the rig ends."""
        ...

    async def leave(self, client_id: str) -> None:
        """The client says goodbye."""
        ...

    async def cut(self, client_id: str) -> None:
        """The client's network breaks, until `mend`."""
        ...

    async def mend(self, client_id: str) -> None:
        """The client's network is back."""
        ...

    async def stop(self) -> None:
        """The broker dies and forgets everything."""
        ...

    async def start(self) -> None:
        """The broker is back on its address."""
        ...


class MemoryRig:
    """The in-process broker, its clients bare or behind a simulated link."""

    def __init__(self, profile: LinkProfile | None = None) -> None:
        self._profile = profile
        self._broker = MemoryBroker()
        self._clients: dict[str, AsyncExitStack] = {}

    async def connect(
        self, client_id: str, *, will: Will | None = None, session_expiry_s: int = 0
    ) -> Client:
        stack = self._clients[client_id] = AsyncExitStack()
        bare = self._broker.connect(client_id, will, session_expiry_s=session_expiry_s)
        await stack.enter_async_context(bare)
        if self._profile is None:
            return bare
        return await stack.enter_async_context(SimulatedLink(bare, self._profile, Random(1)))

    async def leave(self, client_id: str) -> None:
        await self._clients.pop(client_id).aclose()

    async def cut(self, client_id: str) -> None:
        self._broker.cut(client_id)

    async def mend(self, client_id: str) -> None:
        self._broker.mend(client_id)

    async def stop(self) -> None:
        self._broker.stop()

    async def start(self) -> None:
        self._broker.start()

    async def close(self) -> None:
        for stack in self._clients.values():
            await stack.aclose()


class MqttRig:
    """A real broker; each client reaches it through a network of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._clients: dict[str, AsyncExitStack] = {}
        self._older: list[AsyncExitStack] = []
        self._networks: dict[str, Network] = {}

    async def connect(
        self, client_id: str, *, will: Will | None = None, session_expiry_s: int = 0
    ) -> Client:
        if client_id in self._clients:
            self._older.append(self._clients[client_id])
        stack = self._clients[client_id] = AsyncExitStack()
        network = self._networks[client_id] = Network(self.port)
        await stack.enter_async_context(network.open())
        broker = BrokerSettings(port=network.port, **QUICK)  # type: ignore[arg-type]
        return await stack.enter_async_context(
            connect(broker, client_id=client_id, will=will, session_expiry_s=session_expiry_s)
        )

    async def leave(self, client_id: str) -> None:
        await self._clients.pop(client_id).aclose()

    async def cut(self, client_id: str) -> None:
        await self._networks[client_id].cut()

    async def mend(self, client_id: str) -> None:
        self._networks[client_id].mend()

    async def close(self) -> None:
        for stack in (*self._older, *self._clients.values()):
            await stack.aclose()


class MosquittoRig(MqttRig):
    """A mosquitto of its own."""

    def __init__(self, server: Mosquitto) -> None:
        super().__init__(server.port)
        self._server = server

    async def stop(self) -> None:
        self._server.kill()

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)


class EmbeddedRig(MqttRig):
    """The trial broker."""

    def __init__(self) -> None:
        super().__init__(free_port())
        self._broker = AsyncExitStack()

    async def stop(self) -> None:
        await self._broker.aclose()

    async def start(self) -> None:
        await self._broker.enter_async_context(embedded_broker(self.port))


class Network:
    """A TCP relay to a broker on loopback that can be cut."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self._target_port = target_port
        self._is_cut = False
        self._links: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Relays until the context ends."""
        server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        try:
            yield
        finally:
            await self.cut()
            server.close()
            await server.wait_closed()

    async def cut(self) -> None:
        """Breaks every connection, and each new one at once."""
        self._is_cut = True
        for link in self._links:
            link.cancel()
        if self._links:
            await asyncio.wait(self._links)

    def mend(self) -> None:
        """New connections pass again."""
        self._is_cut = False

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            if not self._is_cut:
                back, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
                await _both(_copy(reader, upstream), _copy(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(task)
            for end in (writer, upstream):
                if end is not None:
                    end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def _both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(first, name="up"), asyncio.create_task(second, name="down")]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
