"""What a fault of the scenario does to the world, and how it is undone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from fleet.errors import InvalidInputError
from fleet.transport.link import SimulatedLink
from fleet.transport.memory import MemoryBroker
from simulations.history.events import History
from simulations.scenarios.faults import (
    BadRollout,
    BreakWorker,
    CutLinks,
    DoubleClients,
    Fault,
    FillDatabase,
    FillSpools,
    JumpClock,
    KillAgents,
    KillBroker,
    KillWorker,
    LimitLinks,
    OnDevices,
    OnWorker,
    Poison,
    PoisonUpdates,
    SlowLinks,
    SlowWorker,
    StallAgents,
    StallBroker,
    StallWorker,
    StopDatabase,
    SwallowLinks,
)
from simulations.world.learning import Learning
from simulations.world.machine import Machine
from simulations.world.node import Node
from simulations.world.versions import Rollouts, bad_version
from simulations.world.worker import Storage, Worker


async def bring(
    fault: Fault,
    nodes: Sequence[Node],
    in_force: AbstractAsyncContextManager[None],
    history: History,
) -> None:
    """Waits for a fault's time, puts it into force, and takes it back."""
    await asyncio.sleep(fault.at_s - history.now())
    facts = {"kind": fault.kind, "nodes": [node.resident.node for node in nodes]}
    history.say("fault", state="begins", **facts)
    async with in_force:
        await asyncio.sleep(fault.for_s)
    history.say("fault", state="ends", **facts)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What faults do to a world."""

    broker: MemoryBroker
    workers: Sequence[Worker]
    storage: Storage
    machine: Machine
    rollouts: Rollouts
    learning: Learning | None

    def in_force(
        self, index: int, fault: Fault, nodes: Sequence[Node]
    ) -> AbstractAsyncContextManager[None]:
        """The scenario's fault of that number on its nodes, until the context ends."""
        match fault:
            case BadRollout():
                return self.rollouts.of(fault, bad_version(index))
            case KillWorker() | StallWorker() | SlowWorker() | BreakWorker():
                return _hurt(fault, self.workers[fault.worker])
            case KillBroker() | StopDatabase() | FillDatabase() | JumpClock():
                return self._without(fault)
            case StallBroker():
                raise InvalidInputError("stall-broker needs the real clock")
            case _:
                return self._on_agents(fault, nodes)

    def _on_agents(
        self, fault: OnDevices, nodes: Sequence[Node]
    ) -> AbstractAsyncContextManager[None]:
        match fault:
            case KillAgents():
                return _dead(nodes)
            case DoubleClients():
                return self._doubled(nodes)
            case FillSpools():
                return full_spools(nodes)
            case PoisonUpdates(how=how):
                return self._poisoned(how, nodes)
            case CutLinks() | SwallowLinks() | SlowLinks() | LimitLinks():
                return disturbed(fault, nodes)
            case StallAgents():
                raise InvalidInputError("stall-agents needs the real clock")

    @asynccontextmanager
    async def _poisoned(self, how: Poison, nodes: Sequence[Node]) -> AsyncIterator[None]:
        assert self.learning is not None
        names = [node.resident.node for node in nodes]
        self.learning.poison |= dict.fromkeys(names, how)
        yield
        for name in names:
            self.learning.poison.pop(name, None)

    @asynccontextmanager
    async def _doubled(self, nodes: Sequence[Node]) -> AsyncIterator[None]:
        names = [node.resident.node for node in nodes]
        doubles = [self.broker.connect(name) for name in names]
        yield
        for double, name in zip(doubles, names, strict=True):
            double.close()
            self.broker.mend(name)

    @asynccontextmanager
    async def _without(
        self, fault: KillBroker | StopDatabase | FillDatabase | JumpClock
    ) -> AsyncIterator[None]:
        match fault:
            case KillBroker():
                self.broker.stop()
                yield
                self.broker.start()
            case StopDatabase():
                self.storage.is_stopped = True
                yield
                self.storage.is_stopped = False
            case FillDatabase():
                self.storage.is_full = True
                yield
                self.storage.is_full = False
            case JumpClock(by_s=by_s):
                self.machine.jumped_s += by_s
                yield
                self.machine.jumped_s -= by_s


@asynccontextmanager
async def _dead(nodes: Sequence[Node]) -> AsyncIterator[None]:
    for node in nodes:
        await node.kill()
    yield
    for node in nodes:
        await node.start()


@asynccontextmanager
async def disturbed(
    fault: CutLinks | SwallowLinks | SlowLinks | LimitLinks, nodes: Sequence[Node]
) -> AsyncIterator[None]:
    """The networks of some nodes, disturbed until the context ends."""
    for link in _links(nodes):
        match fault:
            case CutLinks():
                link.cut()
            case SwallowLinks():
                link.cut(silently=True)
            case SlowLinks(times=times):
                link.stretch(times)
            case LimitLinks(bytes=size):
                link.limit(size)
    yield
    for link in _links(nodes):
        link.limit(None)
        link.mend()
        link.stretch(1)


@asynccontextmanager
async def full_spools(nodes: Sequence[Node]) -> AsyncIterator[None]:
    """The spools of some nodes, which take nothing until the context ends."""
    for node in nodes:
        node.fill_spool()
    yield
    for node in nodes:
        node.clear_spool()


@asynccontextmanager
async def _hurt(fault: OnWorker, worker: Worker) -> AsyncIterator[None]:
    match fault:
        case KillWorker():
            await worker.kill()
            yield
            await worker.start()
        case StallWorker():
            worker.stall()
            yield
            worker.go_on()
        case SlowWorker(times=times):
            worker.runner.times *= times
            yield
            worker.runner.times /= times
        case BreakWorker():
            worker.runner.is_broken = True
            yield
            worker.runner.is_broken = False


def _links(nodes: Sequence[Node]) -> list[SimulatedLink]:
    return [node.link for node in nodes if node.link is not None]
