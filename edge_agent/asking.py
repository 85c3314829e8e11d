"""Requests of one picture on their way: a named task each, their answers in order of arrival.

At most `Plan.in_flight` requests are out, so the answers waiting to be taken are bounded too.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from edge_agent.pace import Pace
from edge_agent.plan import Meter
from edge_agent.verifier import Verifier
from fleet.errors import ProtocolError, TransportError
from fleet.ids import RequestId, WorkerId
from fleet.protocol.messages import VerifyResponse
from fleet.transport.calls import Answer, CallStats, CallTimeout, LinkDownError

Result = Answer | TransportError | ProtocolError
Work = Callable[[], Awaitable[tuple[Answer, CallStats]]]


class Asking:
    """The tasks behind a session; `async with` ends them all."""

    def __init__(self, verifier: Verifier, meter: Meter, pace: Pace) -> None:
        self.has_news = False  # read by the drafting thread, which then stops early
        self.gone: set[WorkerId] = set()  # workers that died or said goodbye
        self._verifier = verifier
        self._meter = meter
        self._pace = pace
        self._group = asyncio.TaskGroup()
        self._listening = ExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: deque[tuple[RequestId, Result, CallStats]] = deque()
        self._wake = asyncio.Event()
        self._link_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._listening.enter_context(self._verifier.listening(self._worker_is_down))
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.close()
        self.cancel()
        await self._group.__aexit__(kind, error, trace)

    def ask(self, request_id: RequestId, work: Work, name: str) -> None:
        """Starts a request; its answer, or why there is none, comes out of `take`."""
        self._start(self._ask(request_id, work), name)

    def await_link(self) -> None:
        """Makes it news when the link is back."""
        if self._link_task is None or self._link_task.done():
            self._link_task = self._start(self._link_is_back(), "wait for the broker")

    def take(self) -> Iterator[tuple[RequestId, Result]]:
        """What has come since the last time."""
        self.has_news = False
        while self._answers:
            request_id, answer, stats = self._answers.popleft()
            if isinstance(answer, VerifyResponse) and not stats.retries:
                self._pace.answered(stats.wait_s, answer.queue_s, answer.forward_s)
            yield request_id, answer

    def cancel(self) -> None:
        """Ends all that is on its way."""
        for task in self._tasks:
            task.cancel()
        self._link_task = None

    async def wait(self, until: float) -> None:
        """Returns when there is news, or at the loop time `until`."""
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask(self, request_id: RequestId, work: Work) -> None:
        answer: Result
        try:
            answer, stats = await work()
        except (CallTimeout, LinkDownError) as error:
            answer, stats = error, error.stats
        except (TransportError, ProtocolError) as error:
            answer, stats = error, CallStats()
        self._meter.cost(stats)
        self._answers.append((request_id, answer, stats))
        self._notify()

    async def _link_is_back(self) -> None:
        await self._verifier.wait_connected()
        self._notify()

    def _worker_is_down(self, worker: WorkerId) -> None:
        self.gone.add(worker)
        self._notify()

    def _notify(self) -> None:
        self.has_news = True
        self._wake.set()
