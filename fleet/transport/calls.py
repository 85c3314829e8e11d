"""Requests and answers over a transport: one future for each request id.

A request goes out at QoS 0 and again, byte for byte, until it is answered or its deadline has
passed: the answer is the acknowledgement, and the hub answers a repeated id from its cache.
Answers that come late or twice are dropped and counted. What arrives in the inbox without a
request id waits in `others` (at most `OTHERS_LIMIT`, oldest dropped first and counted).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fleet.errors import ProtocolError, RequestTimeout, TransportError
from fleet.ids import RequestId
from fleet.logs import get_logger
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import (
    Busy,
    GenerationOpen,
    GenerationOpened,
    Message,
    Refused,
    VerifyRequest,
    VerifyResponse,
)
from fleet.transport.base import Inbound, Transport

INBOX_LIMIT = 256
OTHERS_LIMIT = 256
LONGEST_RETRY_S = 1.0
REFUSED_PAUSE_S = 0.05  # before the next try where a link that is up refused a payload

Request = GenerationOpen | VerifyRequest
Answer = GenerationOpened | VerifyResponse | Busy | Refused

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CallStats:
    """What one call has cost; bytes are payloads, without topics and packet headers."""

    attempts: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wait_s: float = 0.0

    @property
    def retries(self) -> int:
        """Attempts after the first."""
        return max(self.attempts - 1, 0)


class CallTimeout(RequestTimeout):
    """No answer before the deadline; `stats` says what the call has cost."""

    def __init__(self, sentence: str, stats: CallStats) -> None:
        super().__init__(sentence)
        self.stats = stats


class LinkDownError(TransportError):
    """The link was down when the deadline passed; `stats` says what the call has cost."""

    def __init__(self, sentence: str, stats: CallStats) -> None:
        super().__init__(sentence)
        self.stats = stats


@dataclass(slots=True)
class CallCounters:
    """What a `Calls` has seen since it began."""

    answered: int = 0
    unanswered: int = 0
    retries: int = 0
    late: int = 0  # answers whose call is over, and second answers
    bad: int = 0  # payloads that are no message of ours
    dropped: int = 0  # messages that waited too long in `others`
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(slots=True)
class _Pending:
    begun: float
    turn: "asyncio.Future[None]"  # ends with the answer, or when it is time to ask again
    answer: Answer | None = None
    attempts: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def stats(self, now: float) -> CallStats:
        return CallStats(self.attempts, self.bytes_up, self.bytes_down, now - self.begun)


class Calls:
    """Calls in flight on one inbox: `async with Calls(transport, inbox_topic) as calls`."""

    def __init__(self, transport: Transport, inbox_topic: str) -> None:
        self.counters = CallCounters()
        self._transport = transport
        self._inbox_topic = inbox_topic
        self._pending: dict[RequestId, _Pending] = {}
        self._others: asyncio.Queue[Message] = asyncio.Queue(OTHERS_LIMIT)
        self._stack = contextlib.AsyncExitStack()

    async def call(
        self, topic: str, request: Request, *, deadline_s: float, retry_after_s: float
    ) -> tuple[Answer, CallStats]:
        """The answer to `request`, sent to `topic` again after `retry_after_s` seconds.

        Each further wait is twice as long, up to `LONGEST_RETRY_S` where that is longer.

        While the link is down the call waits for it, within its deadline.

        Raises:
            CallTimeout: No answer before the deadline.
            LinkDownError: The link was down when the deadline passed.
            ProtocolError: The request is too large to send.
        """
        payload = encode(request)
        loop = asyncio.get_running_loop()
        pending = _Pending(loop.time(), loop.create_future())
        self._pending[request.request_id] = pending
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._send_until_answered(topic, payload, pending, retry_after_s)
        except TimeoutError:
            self.counters.unanswered += 1
            raise self._failure(request, pending.stats(loop.time()), deadline_s) from None
        finally:
            del self._pending[request.request_id]
        self.counters.answered += 1
        return answer, pending.stats(loop.time())

    async def others(self) -> AsyncIterator[Message]:
        """Messages without a request id, such as `Receipt`; ends only by cancellation."""
        while True:
            yield await self._others.get()

    async def _send_until_answered(
        self, topic: str, payload: bytes, pending: _Pending, retry_after_s: float
    ) -> Answer:
        loop, wait_s = asyncio.get_running_loop(), retry_after_s
        while True:
            try:
                await self._transport.publish(topic, payload, qos=0)
            except TransportError:
                await self._transport.wait_connected()
                await asyncio.sleep(REFUSED_PAUSE_S)
                continue
            self._count_attempt(pending, len(payload))
            timer = loop.call_later(wait_s, _end, pending.turn)
            try:
                await pending.turn
            finally:
                timer.cancel()
            if pending.answer is not None:
                return pending.answer
            pending.turn = loop.create_future()
            wait_s = min(2 * wait_s, max(retry_after_s, LONGEST_RETRY_S))

    def _count_attempt(self, pending: _Pending, size: int) -> None:
        self.counters.retries += pending.attempts > 0
        self.counters.bytes_up += size
        pending.attempts += 1
        pending.bytes_up += size

    def _failure(self, request: Request, stats: CallStats, deadline_s: float) -> TransportError:
        if not self._transport.is_connected:
            return LinkDownError(f"the link to the broker was down for {deadline_s:g} s", stats)
        name = type(request).__name__
        return CallTimeout(
            f"{name} was not answered within {deadline_s:g} s ({stats.attempts} attempts)", stats
        )

    async def _read(self, inbox: AsyncIterator[Inbound]) -> None:
        async for inbound in inbox:
            try:
                self._take(decode(inbound.payload), len(inbound.payload))
            except ProtocolError as error:
                self.counters.bad += 1
                log.warning("inbox payload dropped", topic=inbound.topic, reason=str(error))
            # Nothing here outlives the process, and whoever sent it asks or sends again.
            inbound.ack()

    def _take(self, message: Message, size: int) -> None:
        self.counters.bytes_down += size
        match message:
            case GenerationOpened() | VerifyResponse() | Busy() | Refused():
                self._answer(message, size)
            case _:
                if self._others.full():
                    self._others.get_nowait()
                    self.counters.dropped += 1
                self._others.put_nowait(message)

    def _answer(self, answer: Answer, size: int) -> None:
        pending = self._pending.get(answer.request_id)
        if pending is None or pending.answer is not None:
            self.counters.late += 1
            return
        pending.bytes_down += size
        pending.answer = answer
        _end(pending.turn)

    async def __aenter__(self) -> Self:
        inbox = await self._stack.enter_async_context(
            self._transport.subscribe(self._inbox_topic, qos=0, limit=INBOX_LIMIT)
        )
        reader = asyncio.create_task(self._read(inbox), name=f"calls {self._inbox_topic}")
        self._stack.push_async_callback(_stop, reader)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()


def _end(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
