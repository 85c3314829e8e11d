"""TCP between clients and a broker that a scenario may cut, swallow, slow or break at any byte.

What a simulated link loses is a payload; here it is the rest of a connection's bytes, whatever they
are of: a log-in, a subscription, half a payload, a ping, an acknowledgement.
"""

import asyncio
import socket
import struct
from functools import partial
from types import TracebackType
from typing import Self

from fleet.transport.lane import Lane

_HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 14
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing a connection resets it

Ends = tuple[asyncio.StreamWriter, asyncio.StreamWriter]  # to the client, and to the broker


class _OverError(Exception):
    """Somebody has ended a connection, with or without a reset."""


class Relay:
    """A port of its own before a broker's: `async with Relay(broker_port) as relay`."""

    def __init__(self, broker_port: int) -> None:
        self.port = 0  # where it listens
        self.breaks = 0  # connections that were reset at a limit
        self._broker_port = broker_port
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()  # two faults may end at one moment
        self._open: set[Ends] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._delay_s = 0.0
        self._limit: int | None = None
        self._left = 0  # bytes until the limit

    async def cut(self) -> None:
        """Ends all connections, and refuses new ones: both ends know it."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for ends in self._open:
            for writer in ends:
                writer.close()

    def swallow(self) -> None:
        """A black hole: connections seem up, new ones too, and no byte gets through."""
        self._flows.clear()

    def slow(self, delay_s: float) -> None:
        """Every byte of either direction takes so many seconds more."""
        self._delay_s = delay_s

    def reset(self) -> None:
        """Resets all connections; what is on its way is lost."""
        for ends in self._open:
            _reset(ends)

    def limit(self, size: int | None) -> None:
        """Resets a connection after each `size` bytes of all of them, either way; None: no more."""
        self._limit, self._left = size, size or 0

    async def mend(self) -> None:
        """The network is as it was: what was swallowed comes, and new connections are taken."""
        self.slow(0)
        self.limit(None)
        self._flows.set()
        async with self._opening:
            if self._server is None:
                await self._listen()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._take, _HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection, until either end has had enough of it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(_HOST, self._broker_port)
        except OSError:
            writer.close()
            return
        ends = writer, far_writer
        self._open.add(ends)
        try:
            async with asyncio.TaskGroup() as group:
                for source, target in (reader, far_writer), (far_reader, writer):
                    lane = Lane(partial(self._hand_over, ends, target))
                    group.create_task(self._receive(source, lane), name="relay in")
                    group.create_task(lane.run(), name="relay out")
        except* OSError:
            _reset(ends)  # as one end did
        except* _OverError:
            pass
        finally:
            self._open.discard(ends)
            for end in ends:
                end.close()

    async def _receive(self, source: asyncio.StreamReader, lane: Lane[bytes]) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(_CHUNK_BYTES):
            await lane.put(loop.time() + self._delay_s, data)
        await lane.put(loop.time() + self._delay_s, b"")

    async def _hand_over(self, ends: Ends, target: asyncio.StreamWriter, data: bytes) -> None:
        await self._flows.wait()
        if not data:
            raise _OverError
        left = len(data) if self._limit is None else self._left
        self._left -= len(data)
        target.transport.set_write_buffer_limits(0)  # so that `drain` waits for the kernel
        target.write(data[:left])
        await target.drain()
        if left < len(data):
            self._left = self._limit or 0
            self.breaks += 1
            _reset(ends)
            raise _OverError


def _reset(ends: Ends) -> None:
    for writer in ends:
        connection = writer.get_extra_info("socket")
        if connection is not None and not writer.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        writer.transport.abort()
