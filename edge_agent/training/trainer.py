"""The node's part in federated rounds: fetch what is asked, train when idle, answer once.

The hub repeats a task until it is answered. A task that was answered is answered from disk; one
that waits or runs already is not taken twice; of more than `WAITING` that wait, the oldest goes.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from edge_agent.training.replies import Replies
from edge_agent.training.worker import Worker
from fleet.errors import FleetError, ProtocolError, TransportError
from fleet.federation.bodies import join, split
from fleet.ids import NodeId, RequestId
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import RoundChunk, RoundReply, RoundTask
from fleet.transport.base import Inbound, Transport

READY = "ready"  # what a node's status says under `training` if it may be asked
WAITING = 4
CHUNKS_WAITING = 64
SHORTEST_FETCH_S = 5.0
LINK_PAUSE_S = 0.05  # before the next try where a link that is up refused a payload

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    message_id: RequestId
    content: bytes
    error: str


class Trainer:
    """Takes part in rounds over one transport."""

    def __init__(self, node: NodeId, folder: Path, worker: Worker, transport: Transport) -> None:
        self.trained = 0  # tasks that were computed, not answered from disk
        self._node = node
        self._replies = Replies(folder / "replies")
        self._worker = worker
        self._transport = transport
        self._tasks: OrderedDict[RequestId, RoundTask] = OrderedDict()
        self._present: RequestId | None = None
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Works until cancelled."""
        subscription = self._transport.subscribe(
            topics.round_tasks(self._node), qos=1, limit=WAITING * 4
        )
        try:
            async with subscription as arrivals, asyncio.TaskGroup() as group:
                group.create_task(self._listen(arrivals), name="round tasks")
                group.create_task(self._work(), name="training")
        finally:
            await self._worker.close()

    async def _listen(self, arrivals: AsyncIterator[Inbound]) -> None:
        async for inbound in arrivals:
            inbound.ack()  # the hub asks again
            try:
                task = decode(inbound.payload)
            except ProtocolError as error:
                log.warning("round task dropped", reason=str(error))
                continue
            if isinstance(task, RoundTask):
                self._take(task)

    def _take(self, task: RoundTask) -> None:
        if task.message_id in self._tasks or task.message_id == self._present:
            return
        self._tasks[task.message_id] = task
        if len(self._tasks) > WAITING:
            dropped, _ = self._tasks.popitem(last=False)
            log.warning("round task dropped", reason="newer ones wait", message_id=dropped)
        self._arrived.set()

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._tasks:
                self._present, task = self._tasks.popitem(last=False)
                try:
                    answer = await self._answer(task)
                    if answer is not None:
                        await self._send(answer, task.deadline_s)
                finally:
                    self._present = None

    async def _answer(self, task: RoundTask) -> _Answer | None:
        """The answer, from disk if it was given before; None where the hub must ask again."""
        if (known := self._replies.find(task.message_id)) is not None:
            return _Answer(task.message_id, *known)
        try:
            body = await self._fetch(task)
            fields = task.model_dump(exclude={"type", "chunks"}) | {"body": body}
            found = await self._worker.ask(fields)
            self.trained += 1
            answer = _Answer(task.message_id, found.get("content", b""), found.get("error", ""))
            kept = (answer.message_id, answer.content, answer.error)
            await asyncio.to_thread(self._replies.keep, *kept)
        except (TimeoutError, FleetError) as error:
            log.warning("round task not done", reason=str(error) or "no body", kind=task.kind)
            return None
        return answer

    async def _fetch(self, task: RoundTask) -> bytes:
        """The body that the task names, from the parts that the hub has published for all."""
        parts: dict[int, bytes] = {}
        subscription = self._transport.subscribe(
            topics.round_body(task.body), qos=1, limit=CHUNKS_WAITING
        )
        async with asyncio.timeout(max(task.deadline_s, SHORTEST_FETCH_S)):
            async with subscription as arrivals:
                async for inbound in arrivals:
                    inbound.ack()
                    chunk = decode(inbound.payload) if inbound.payload else None
                    if isinstance(chunk, RoundChunk) and chunk.index < task.chunks:
                        parts[chunk.index] = chunk.data
                    if len(parts) == task.chunks:
                        break
        return join(parts, task.body)

    async def _send(self, answer: _Answer, deadline_s: float) -> None:
        """Publishes an answer; if the link does not come back in time, the hub asks again."""
        parts = split(answer.content)
        name = hashlib.sha256(answer.content).hexdigest()
        replies = [
            RoundReply(
                message_id=answer.message_id,
                body=name,
                index=index,
                chunks=len(parts),
                data=part,
                error=answer.error,
            )
            for index, part in enumerate(parts)
        ]
        try:
            async with asyncio.timeout(max(deadline_s, SHORTEST_FETCH_S)):
                for reply in replies:
                    await self._publish(encode(reply))
        except TimeoutError:
            log.warning("round reply not sent", message_id=answer.message_id)

    async def _publish(self, payload: bytes) -> None:
        while True:
            try:
                await self._transport.publish(topics.round_reply(self._node), payload, qos=1)
            except TransportError:
                await self._transport.wait_connected()
                await asyncio.sleep(LINK_PAUSE_S)
                continue
            return
