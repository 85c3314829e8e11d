"""A fleet that lives: everybody asks for pictures, faults fall on it, and it comes to rest."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from simulations.history.events import History
from simulations.world.node import Node

DRAIN_S = 300.0  # after the last picture was asked for, until every record should have its receipt


async def live(
    nodes: Sequence[Node], faults: Iterable[Coroutine[Any, Any, None]], history: History
) -> None:
    """Returns when all was asked for, all faults are over and nothing is on its way any more."""
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(node.serve_wishes(), name=f"wishes of {node.resident.node}")
        for fault in faults:
            group.create_task(fault, name="fault")
    give_up_at, unsettled = history.now() + DRAIN_S, 1
    while unsettled and history.now() < give_up_at:
        await asyncio.sleep(1)
        unsettled = sum([await node.unsettled() for node in nodes])
    history.say("end", unsettled=unsettled)
