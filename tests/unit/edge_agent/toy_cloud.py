"""A worker on a transport that answers by the toy's laws, and can be made to misbehave."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from edge_agent.verifier import Patience, Speaker, Verifier
from fleet.errors import TransportError
from fleet.ids import BootId, NodeId, WorkerId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import (
    Busy,
    GenerationClose,
    GenerationOpen,
    GenerationOpened,
    GenerationRecord,
    Receipt,
    Refused,
    VerifyRequest,
    VerifyResponse,
)
from fleet.transport.base import Transport
from fleet.transport.calls import Calls
from fleet.transport.memory import MemoryBroker
from tests.unit.edge_agent.toy import ToyHub

Answer = GenerationOpened | VerifyResponse | Busy | Refused
NODE, BOOT = NodeId("node"), BootId("boot")


@dataclass
class ToyCloud:
    """Answers what arrives; `spoil` may replace, delay (seconds) or swallow (None) an answer."""

    transport: Transport
    hub: ToyHub
    spoil: Callable[[Answer], "tuple[float, Answer] | None"] = lambda answer: (0.0, answer)
    copies: Callable[[], int] = lambda: 1  # of each answer
    is_busy: Callable[[], bool] = lambda: False
    closed: list[str] = field(default_factory=list)
    records: list[GenerationRecord] = field(default_factory=list)
    gives_receipts: bool = True
    deliveries: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self) -> None:
        pinned = topics.requests_to(WorkerId(self.hub.worker))
        filters = (topics.OPENS, pinned, topics.RECORDS)
        async with (
            asyncio.TaskGroup() as tasks,
            self.transport.subscribe(*filters, qos=1, limit=100) as inbox,
        ):
            self.started.set()
            async for inbound in inbox:
                node = topics.sender(inbound.topic)
                tasks.create_task(self.answer(node, decode(inbound.payload)))
                inbound.ack()

    async def answer(self, node: NodeId, message: object) -> None:
        answer: Answer
        match message:
            case GenerationOpen() | VerifyRequest() if self.is_busy():
                answer = Busy(
                    request_id=message.request_id,
                    generation_id=message.generation_id,
                    retry_after_s=0.01,
                )
            case GenerationOpen():
                answer = self.hub.open(message)
            case VerifyRequest():
                answer = self.hub.verify(message)
            case GenerationClose():
                self.hub.sessions.pop(message.generation_id, None)
                self.closed.append(message.generation_id)
                return
            case GenerationRecord():
                await self.keep(node, message)
                return
            case _:
                raise AssertionError(message)
        for _ in range(self.copies()):
            spoiled = self.spoil(answer)
            if spoiled is None:
                continue
            await asyncio.sleep(spoiled[0])
            with contextlib.suppress(TransportError):
                await self.transport.publish(
                    topics.inbox(node, message.boot_id), encode(spoiled[1]), qos=0
                )

    async def keep(self, node: NodeId, record: GenerationRecord) -> None:
        self.deliveries += 1
        known = {(kept.boot_id, kept.sequence) for kept in self.records}
        if (record.boot_id, record.sequence) not in known:
            self.records.append(record)
        if self.gives_receipts:
            receipt = Receipt(boot_id=record.boot_id, sequences=[record.sequence])
            await self.transport.publish(topics.inbox(node, record.boot_id), encode(receipt), qos=0)


@asynccontextmanager
async def toy_cloud(
    broker: MemoryBroker, size: int = 24, worker: str = "w1"
) -> AsyncIterator[ToyCloud]:
    """A worker on the broker until the context ends."""
    cloud = ToyCloud(broker.connect(worker), ToyHub(size, worker))
    task = asyncio.create_task(cloud.serve(), name="toy cloud")
    await cloud.started.wait()
    try:
        yield cloud
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def verifier(broker: MemoryBroker, patience: Patience) -> AsyncIterator[Verifier]:
    """A device's verifier on the broker."""
    transport = broker.connect("node")
    async with Calls(transport, topics.inbox(NODE, BOOT)) as calls:
        yield Verifier(transport, calls, Speaker(NODE, BOOT, "toy"), patience)


def jitter(
    seed: int, loss: float, delay_s: float
) -> Callable[[Answer], tuple[float, Answer] | None]:
    """Loses some answers, and delays the rest so that they overtake each other."""
    rng = random.Random(seed)

    def spoil(answer: Answer) -> tuple[float, Answer] | None:
        if rng.random() < loss:
            return None
        return rng.uniform(0, delay_s), answer

    return spoil
