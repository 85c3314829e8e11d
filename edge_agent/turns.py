"""Who makes a picture next: callers take turns, each of them in the order it asked. Bounded."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fleet.errors import CapacityError

_Queue = deque["asyncio.Future[None]"]


class Turns:
    """One turn at a time; at most `limit` wait for it."""

    def __init__(self, limit: int) -> None:
        self.is_taken = False
        self._limit = limit
        self._queues: dict[str, _Queue] = {}  # the caller whose turn is next comes first

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(queue) for queue in self._queues.values())

    @asynccontextmanager
    async def turn(
        self, caller: str, queued: Callable[[int], None] = lambda _: None
    ) -> AsyncIterator[None]:
        """The turn of one picture; `queued` is told how many come first, if any does.

        Raises:
            CapacityError: As many wait as may.
        """
        if self.is_taken:
            await self._wait(caller, queued)
        self.is_taken = True
        try:
            yield
        finally:
            self.is_taken = False
            self._call_next()

    async def _wait(self, caller: str, queued: Callable[[int], None]) -> None:
        if self.waiting >= self._limit:
            raise CapacityError(
                f"{self.waiting} pictures wait already: try again when some are done, or raise"
                " generation.queue"
            )
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(caller, deque())
        queued(1 + sum(min(len(other), len(queue) + 1) for other in self._queues.values()))
        queue.append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # called, and gone in the same moment
                self.is_taken = False
                self._call_next()
            elif called in queue:
                queue.remove(called)
                self._forget(caller)
            raise

    def _call_next(self) -> None:
        while self._queues:
            caller = next(iter(self._queues))
            queue = self._queues.pop(caller)
            called = queue.popleft()
            if queue:
                self._queues[caller] = queue  # behind those of the others
            if not called.done():  # else its caller has left
                self.is_taken = True  # nobody slips in before who was called
                called.set_result(None)
                return

    def _forget(self, caller: str) -> None:
        if not self._queues.get(caller, True):
            del self._queues[caller]
