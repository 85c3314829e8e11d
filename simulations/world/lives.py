"""Lives of agents and workers: tasks that are begun, and ended for good."""

import asyncio


async def until_ready(life: "asyncio.Task[None]", ready: asyncio.Event) -> None:
    """Returns when a life says that it is ready; raises what ended it before."""
    waiting = asyncio.create_task(ready.wait(), name="ready")
    await asyncio.wait([life, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if life.done():
        await life


async def ended(life: "asyncio.Task[None]") -> None:
    """Cancels a life and waits until it is over; raises what went wrong in it."""
    life.cancel()
    await asyncio.wait([life])
    if not life.cancelled() and (error := life.exception()) is not None:
        raise error
