"""Nodes of a toy fleet on a memory broker: the agent's trainer, with the app in this process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from edge_agent.training.trainer import Trainer
from edge_agent.training.worker import Worker
from fleet.federation.worker import _answer
from fleet.ids import NodeId
from fleet.transport.memory import MemoryBroker
from tests.integration.rounds.node import show
from tests.unit.federation.toy import make_node

NODES = [NodeId(f"node-{letter}") for letter in "abc"]


class InThisProcess(Worker):
    """Answers without a process of its own; all requests but the first few wait for `gate`."""

    def __init__(self, folder: Path, gate: asyncio.Event | None, free: int) -> None:
        super().__init__([folder], lambda: False)
        self._folder, self._gate, self._free = folder, gate, free

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._free -= 1
        if self._gate is not None and self._free < 0:
            await self._gate.wait()
        return await asyncio.to_thread(_answer, request, self._folder)


@asynccontextmanager
async def nodes(
    broker: MemoryBroker,
    folder: Path,
    names: Sequence[NodeId] = NODES,
    cloud: str = "",
    gate: asyncio.Event | None = None,
    free: int = 0,
) -> AsyncIterator[dict[NodeId, Trainer]]:
    """Nodes that can train on what `cloud` has said, until the context ends."""
    trainers: dict[NodeId, Trainer] = {}
    tasks: list[asyncio.Task[None]] = []
    for name in names:
        if not (folder / name).exists():
            make_node(folder / name, NODES.index(name), cloud=cloud)
        transport = broker.connect(name)
        trainers[name] = Trainer(
            name, folder / name, InThisProcess(folder / name, gate, free), transport
        )
        tasks += [
            asyncio.create_task(trainers[name].run(), name=f"trainer {name}"),
            asyncio.create_task(show(transport, name), name=f"status {name}"),
        ]
    try:
        yield trainers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
