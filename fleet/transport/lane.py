"""One direction of a simulated link: when a payload arrives, and handing it over in order."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from fleet.transport.base import QoS
from fleet.transport.bell import Bell

T = TypeVar("T")

HEADER_BYTES = 60  # TCP/IP and the fixed part of a PUBLISH
IN_FLIGHT_LIMIT = 1024  # payloads of one direction; beyond it the sender waits


@dataclass(slots=True)
class Direction:
    """When payloads of one direction arrive; no clock and no loop."""

    mbps: float
    delay_s: float
    jitter_s: float
    loss: float
    rng: Random
    _idle_at: float = 0.0  # when the last payload's last bit has left
    _last_arrival: float = 0.0

    def arrival(self, now: float, size: int, qos: QoS) -> float | None:
        """When `size` bytes sent `now` arrive; None if they never do."""
        self._idle_at = max(now, self._idle_at) + (size + HEADER_BYTES) * 8 / (self.mbps * 1e6)
        is_lost = self.rng.random() < self.loss
        delay_s = self.delay_s + self.rng.random() * self.jitter_s
        if is_lost and not qos:
            return None
        resent_s = 2 * self.delay_s if is_lost else 0.0
        self._last_arrival = max(self._last_arrival, self._idle_at + delay_s + resent_s)
        return self._last_arrival


class Lane(Generic[T]):
    """Hands items over at their times of arrival, in order, one after the other."""

    def __init__(self, hand_over: Callable[[T], Awaitable[None]]) -> None:
        self._hand_over = hand_over
        self._items: deque[tuple[float, T]] = deque()  # the first is the one that is next
        self._has_items = Bell()
        self._has_room = asyncio.Event()  # many may wait for it

    async def put(self, arrival: float, item: T) -> None:
        """Puts an item on its way, when there is room."""
        while len(self._items) >= IN_FLIGHT_LIMIT:
            self._has_room.clear()
            await self._has_room.wait()
        self._items.append((arrival, item))
        self._has_items.ring()

    async def run(self) -> None:
        """Runs for the lane's life."""
        loop = asyncio.get_running_loop()
        while True:
            while not self._items:
                await self._has_items.wait()
            arrival, item = self._items[0]
            await asyncio.sleep(arrival - loop.time())
            await self._hand_over(item)
            self._items.popleft()
            self._has_room.set()

    def left_over(self) -> list[T]:
        """What was still on its way when `run` ended."""
        return [item for _, item in self._items]
