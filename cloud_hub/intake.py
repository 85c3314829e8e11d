"""Requests from the broker to the engine, and answers back; what is not ours is counted and left.

Requests come at QoS 0 in a bounded queue: when it is full the oldest is dropped, and its node
asks again. An answer that cannot be sent is dropped too; it is kept for the node's next try.
Openings whose captions take long to read wait beside the others, at most `_READING` of them;
beyond that a node is told to come back.
"""

import asyncio
from collections.abc import AsyncIterator

from cloud_hub.engine.loop import Engine
from cloud_hub.engine.requests import Answer, Full, Request, SessionKey
from cloud_hub.notices import Notices
from cloud_hub.verification import Service, read_open, read_verify, write_answer
from fleet.errors import ProtocolError, TransportError
from fleet.ids import NodeId, is_level
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import GenerationClose, GenerationOpen, Refused, ToNode, VerifyRequest
from fleet.transport.base import Inbound, Transport

log = get_logger(__name__)

_SEND_S = 2.0
_READING = 64
_READING_RETRY_S = 2.0


class Intake:
    """Hands requests to the engine."""

    def __init__(
        self, transport: Transport, engine: Engine, service: Service, notices: Notices
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._service = service
        self._notices = notices
        self._unread: asyncio.Queue[tuple[NodeId, GenerationOpen]] = asyncio.Queue(_READING)

    async def run(self, arrivals: AsyncIterator[Inbound]) -> None:
        """Takes what arrives, until cancelled; no payload ends it."""
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read_captions(), name="captions")
            await self._take_all(arrivals)
            reading.cancel()

    async def _take_all(self, arrivals: AsyncIterator[Inbound]) -> None:
        async for inbound in arrivals:
            try:
                await self._take(inbound)
            except ProtocolError as error:
                self._notices.warn("request dropped", _node_of(inbound.topic), str(error))
            except Exception:
                log.exception("request failed", topic=inbound.topic)
            inbound.ack()

    async def _take(self, inbound: Inbound) -> None:
        node = topics.sender(inbound.topic)
        if not is_level(node):
            raise ProtocolError(f"topic {inbound.topic!r} names no usable node")
        message = decode(inbound.payload)
        match message:
            case GenerationOpen() | VerifyRequest():
                await self._ask(node, message)
            case GenerationClose():
                self._engine.close(SessionKey(node, message.generation_id))
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a request")

    async def _read_captions(self) -> None:
        """Reads captions that take long, one after the other, away from the loop."""
        while True:
            node, message = await self._unread.get()
            try:
                request = await asyncio.to_thread(read_open, self._service, node, message)
                await self._submit(node, message, request)
            except Exception:
                log.exception("caption not read", node=node, request_id=message.request_id)

    async def _ask(self, node: NodeId, message: GenerationOpen | VerifyRequest) -> None:
        if isinstance(message, VerifyRequest):
            await self._submit(node, message, read_verify(self._service, node, message))
        elif not self._service.captions_take_long:
            await self._submit(node, message, read_open(self._service, node, message))
        elif self._unread.full():
            busy = write_answer(self._service, message, Full(_READING_RETRY_S))
            await self._send(node, message, busy)
        else:
            self._unread.put_nowait((node, message))

    async def _submit(
        self, node: NodeId, message: GenerationOpen | VerifyRequest, request: Request | Refused
    ) -> None:
        async def reply(answer: Answer) -> None:
            await self._send(node, message, write_answer(self._service, message, answer))

        if isinstance(request, Refused):
            # Not the detail: it may quote the caption, which is the device's secret.
            self._notices.warn("request refused", node, request.reason)
            await self._send(node, message, request)
            return
        answer = self._engine.submit(request, reply)
        if answer is not None:
            await reply(answer)

    async def _send(
        self, node: NodeId, message: GenerationOpen | VerifyRequest, answer: ToNode
    ) -> None:
        if not is_level(message.boot_id):
            raise ProtocolError("boot_id names no inbox")
        try:
            async with asyncio.timeout(_SEND_S):
                await self._transport.publish(
                    topics.inbox(node, message.boot_id), encode(answer), qos=0
                )
        except (TransportError, TimeoutError):
            log.info("answer not sent", node=node, request_id=message.request_id)


def _node_of(topic: str) -> str:
    levels = topic.split("/")
    return levels[3] if len(levels) > 3 else topic
