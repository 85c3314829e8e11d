"""Arrivals taken together, so that many share one transaction."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fleet.transport.base import Inbound


async def batches(
    arrivals: AsyncIterator[Inbound], *, limit: int, wait_s: float
) -> AsyncIterator[list[Inbound]]:
    """Lists of 1 to `limit` arrivals; the first of a list waits at most `wait_s` for others."""
    while True:
        batch = [await anext(arrivals)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while len(batch) < limit:
                    batch.append(await anext(arrivals))
        yield batch
