"""Arrivals share a batch if they come close together."""

import asyncio
from collections.abc import AsyncIterator

from cloud_hub.batches import batches
from fleet.transport.base import Inbound


def inbound(topic: str) -> Inbound:
    return Inbound(topic, b"", retained=False, ack=lambda: None, qos=1)


class Arrivals(AsyncIterator[Inbound]):
    """What the test puts in."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Inbound] = asyncio.Queue()

    def put(self, *topics: str) -> None:
        """Makes payloads arrive."""
        for topic in topics:
            self.queue.put_nowait(inbound(topic))

    async def __anext__(self) -> Inbound:
        return await self.queue.get()


def topics(batch: list[Inbound]) -> list[str]:
    return [each.topic for each in batch]


async def test_a_full_batch_does_not_wait() -> None:
    arrivals = Arrivals()
    arrivals.put("a", "b", "c", "d", "e")
    taken = batches(arrivals, limit=2, wait_s=3600)

    async with asyncio.timeout(5):
        found = [topics(await anext(taken)) for _ in range(2)]

    assert found == [["a", "b"], ["c", "d"]]


async def test_what_came_alone_goes_alone_and_nothing_is_lost() -> None:
    arrivals = Arrivals()
    taken = batches(arrivals, limit=9, wait_s=0.01)
    arrivals.put("a")

    async with asyncio.timeout(5):
        first = topics(await anext(taken))
        arrivals.put("b", "c")
        second = topics(await anext(taken))

    assert (first, second) == (["a"], ["b", "c"])
