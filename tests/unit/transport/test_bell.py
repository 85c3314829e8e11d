"""A bell wakes the one who waits, and is forgotten where nobody does."""

import asyncio

from fleet.transport.bell import Bell


async def test_a_ring_wakes_the_task_that_waits() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait())
    await asyncio.sleep(0)

    bell.ring()
    bell.ring()

    async with asyncio.timeout(1):
        await waiting


async def test_a_ring_that_nobody_heard_is_over() -> None:
    bell = Bell()
    bell.ring()

    waiting = asyncio.create_task(bell.wait())
    await asyncio.sleep(0)
    assert not waiting.done()

    waiting.cancel()
    await asyncio.wait([waiting])
    bell.ring()
    assert waiting.cancelled()
