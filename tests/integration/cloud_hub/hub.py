"""A hub on the in-memory broker, with the toy model and a real database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cloud_hub import app, presence
from cloud_hub.settings import EngineSettings, HubSettings, LogSettings, StoreSettings
from cloud_hub.store.database import Database
from cloud_hub.verification import Service
from fleet.ids import BootId, ModelVersion, NodeId, WorkerId, new_id
from fleet.models.caption import PAD, UNKNOWN, CaptionVocabulary
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import Message
from fleet.transport.memory import MemoryBroker, MemoryTransport
from tests.unit.cloud_hub.toy import CODES, POSITIONS, VOCAB, ToyRunner

WORKER = WorkerId("w1")
PATIENCE_S = 45  # of a machine that does something else
VOCABULARY = CaptionVocabulary((PAD, UNKNOWN, "heart", "red"))


def make_hub(
    database: Database | None, runner: ToyRunner | None = None, worker: str = WORKER
) -> app.Hub:
    """A worker that serves the toy."""
    name = WorkerId(worker)
    identity = presence.Identity(name, BootId(new_id()), "toy", ModelVersion("v1"), "0.1.0")
    service = Service(name, "toy", ModelVersion("v1"), POSITIONS, VOCAB, VOCABULARY)
    return app.Hub(identity, service, runner or ToyRunner(), CODES, database)


@asynccontextmanager
async def serving(
    broker: MemoryBroker, hub: app.Hub, check_share: float = 0.0
) -> AsyncIterator[MemoryTransport]:
    """The hub at work until the context ends."""
    settings = HubSettings(
        store=StoreSettings(batch_wait_s=0.01),
        engine=EngineSettings(check_share=check_share),
        log=LogSettings(),
    )
    is_ready = asyncio.Event()
    async with broker.connect(f"hub-{new_id()}", hub.identity.will) as transport:
        work = asyncio.create_task(
            app.serve(settings, transport, hub, ready=is_ready.set), name="hub"
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                await is_ready.wait()
            yield transport
        finally:
            work.cancel()
            await asyncio.wait([work])


@dataclass(slots=True)
class Device:
    """One boot of a node: sends bytes and reads its inbox."""

    transport: MemoryTransport
    inbox: AsyncIterator[object]
    node: NodeId

    async def send(self, topic: str, message: Message | bytes, *, qos: int = 0) -> None:
        """Publishes a message, or bytes that are none."""
        payload = message if isinstance(message, bytes) else encode(message)
        await self.transport.publish(topic, payload, qos=1 if qos else 0)

    async def read(self) -> Message:
        """The next message of the inbox."""
        async with asyncio.timeout(PATIENCE_S):
            inbound = await anext(self.inbox)
        message: Message = decode(inbound.payload)  # type: ignore[attr-defined]
        return message

    async def ask(self, topic: str, message: Message) -> Message:
        """The answer to a request."""
        await self.send(topic, message)
        return await self.read()


@asynccontextmanager
async def joined(
    broker: MemoryBroker, node: str = "n1", boot: str = "boot"
) -> AsyncIterator[Device]:
    """A device with an inbox."""
    async with broker.connect(node) as transport:
        inbox = topics.inbox(NodeId(node), BootId(boot))
        async with transport.subscribe(inbox, qos=0, limit=99) as arrivals:
            yield Device(transport, arrivals, NodeId(node))
