"""Tasks to nodes and their answers over the fleet's transport: at least once, and idempotent.

A broker may lose what it has acknowledged, so QoS is not enough: a task is repeated when its node
comes (back) up, when the link does, and every `repeat_s`, until it is answered. Bodies are
published once for all nodes, retained under their hash, and again on every new link.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from fleet.errors import ProtocolError, TransportError
from fleet.federation.bodies import join, split
from fleet.ids import BootId, NodeId
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import NodeStatus, RoundChunk, RoundReply, RoundTask
from fleet.transport.base import Inbound, Transport

REPEAT_S = 10.0
_GOODBYE_S = 2.0
_SETTLE_S = 1.0
ARRIVALS = 1024
READY = "ready"  # the fact `training` of a node that can train
MOST_NODES_BYTES = 64 << 20  # of unfinished answers, all together

log = get_logger(__name__)


@dataclass(slots=True)
class _Pending:
    number: int  # of the node
    payload: bytes
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the content, or an error."""

    number: int
    content: bytes
    error: str


class Exchange:
    """All that is asked and not answered."""

    def __init__(self, transport: Transport, repeat_s: float = REPEAT_S) -> None:
        self.nodes: dict[int, NodeId] = {}  # those that are up and can train, by number
        self._known: dict[int, NodeId] = {}  # all that were ever heard of
        self.answers: dict[str, Answer] = {}
        self.traffic: dict[int, tuple[int, int]] = {}
        self.refused = 0  # replies that nobody waits for, or from a node that was not asked
        self._transport = transport
        self._repeat_s = repeat_s
        self._pending: dict[str, _Pending] = {}
        self._bodies: dict[str, list[bytes]] = {}
        self._came = asyncio.Event()
        self._boots: dict[int, BootId] = {}

    async def run(self) -> None:
        """Receives and repeats until cancelled; then the bodies are withdrawn."""
        link = self._transport
        async with (
            link.subscribe(topics.ROUND_REPLIES, qos=1, limit=ARRIVALS) as replies,
            link.subscribe(topics.NODE_STATES, qos=1, limit=ARRIVALS) as states,
        ):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hear(replies), name="round replies")
                    group.create_task(self._follow(states), name="round nodes")
                    group.create_task(self._repeat(), name="round repeats")
                    group.create_task(self._relink(), name="round links")
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GOODBYE_S):
                        await self._withdraw(list(self._bodies))

    async def ask(self, tasks: Iterable[RoundTask], bodies: Iterable[bytes]) -> None:
        """Publishes bodies and tasks; those before are not waited for any more.

        What the link does not take now is sent when it is back, and what is for a node that was
        never heard of when it comes.
        """
        self._pending.clear()
        self.answers.clear()
        named = {hashlib.sha256(body).hexdigest(): split(body) for body in bodies}
        await self._withdraw([body for body in self._bodies if body not in named])
        for body, parts in named.items():
            if body not in self._bodies:
                self._bodies[body] = parts
                await self._publish_body(body)
        for task in tasks:
            pending = _Pending(task.number, encode(task))
            self._pending[task.message_id] = pending
            self._count(pending.number, down=sum(map(len, self._bodies[task.body])))
            await self._send(pending)

    async def wait_nodes(self, least: int) -> None:
        """Returns when so many nodes are up and can train, and for a second no other has come.

        The caller sets the deadline.
        """
        while True:
            self._came.clear()
            try:
                async with asyncio.timeout(_SETTLE_S):
                    await self._came.wait()
            except TimeoutError:
                if len(self.nodes) >= least:
                    return

    # ── Out ───────────────────────────────────────────────────────────────────────────────

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._repeat_s)
            for pending in list(self._pending.values()):
                await self._send(pending)

    async def _relink(self) -> None:
        """A new link may lead to a broker that has forgotten everything."""
        while True:
            await self._transport.wait_connected(False)
            await self._transport.wait_connected()
            for body in list(self._bodies):
                await self._publish_body(body)
            for pending in list(self._pending.values()):
                await self._send(pending)

    async def _publish_body(self, body: str) -> None:
        for index, part in enumerate(self._bodies.get(body, [])):
            payload = encode(RoundChunk(index=index, data=part))
            await self._publish(topics.round_chunk(body, index), payload, retain=True)

    async def _withdraw(self, bodies: Iterable[str]) -> None:
        for body in bodies:
            for index in range(len(self._bodies.pop(body))):
                await self._publish(topics.round_chunk(body, index), b"", retain=True)

    async def _send(self, pending: _Pending) -> None:
        node = self._known.get(pending.number)
        if node is None:
            return
        if await self._publish(topics.round_tasks(node), pending.payload, retain=False):
            self._count(pending.number, down=len(pending.payload))

    async def _publish(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        try:
            await self._transport.publish(topic, payload, qos=1, retain=retain)
        except TransportError as error:
            log.info("round payload waits for the link", topic=topic, reason=str(error))
            return False
        return True

    # ── In ────────────────────────────────────────────────────────────────────────────────

    async def _hear(self, arrivals: AsyncIterator[Inbound]) -> None:
        async for inbound in arrivals:
            inbound.ack()  # a node keeps its answer, and is asked again
            try:
                reply = decode(inbound.payload)
                if isinstance(reply, RoundReply):
                    self._take(topics.sender(inbound.topic), reply, len(inbound.payload))
            except ProtocolError as error:
                log.warning("round reply dropped", topic=inbound.topic, reason=str(error))

    def _take(self, node: NodeId, reply: RoundReply, size: int) -> None:
        pending = self._pending.get(reply.message_id)
        if pending is None or pending.number != number_of(node):
            self.refused += 1
            return
        self._count(pending.number, up=size)
        if reply.index >= reply.chunks or self._is_too_much(len(reply.data)):
            raise ProtocolError(f"part {reply.index} of {reply.chunks}, or too many bytes wait")
        pending.parts[reply.index] = reply.data
        if len(pending.parts) < reply.chunks:
            return
        parts, pending.parts = pending.parts, {}
        content = join(parts, reply.body)
        self.answers[reply.message_id] = Answer(pending.number, content, reply.error)
        del self._pending[reply.message_id]

    def _is_too_much(self, size: int) -> bool:
        waiting = sum(len(p) for each in self._pending.values() for p in each.parts.values())
        return waiting + size > MOST_NODES_BYTES

    async def _follow(self, arrivals: AsyncIterator[Inbound]) -> None:
        async for inbound in arrivals:
            inbound.ack()
            try:
                status = decode(inbound.payload) if inbound.payload else None
                node = topics.sender(inbound.topic)
            except ProtocolError:
                continue  # `nodes.follow` tells of it
            if isinstance(status, NodeStatus):
                await self._heard_of(node, status)

    async def _heard_of(self, node: NodeId, status: NodeStatus) -> None:
        number = number_of(node)
        self._known[number] = node
        if status.state != "ready" or status.facts.get("training") != READY:
            self.nodes.pop(number, None)
            return
        boot, self._boots[number] = self._boots.get(number), status.boot_id
        if number in self.nodes and boot == status.boot_id:
            return
        self.nodes[number] = node
        self._came.set()
        for pending in [each for each in self._pending.values() if each.number == number]:
            await self._send(pending)

    def _count(self, number: int, *, down: int = 0, up: int = 0) -> None:
        so_far = self.traffic.get(number, (0, 0))
        self.traffic[number] = (so_far[0] + down, so_far[1] + up)


def number_of(node: NodeId) -> int:
    """A node's number in every run: Flower's are 63 bits, and 1 is the hub's."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:8], "big") >> 1
