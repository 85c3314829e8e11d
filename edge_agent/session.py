"""One picture's dealings with the cloud: open, send backlogs, take verdicts, open again, give up.

The picture stays right whatever happens here: a lost session costs time, never tokens. At
most `Plan.in_flight` requests are out, so the answers waiting to be taken are bounded too.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from edge_agent.device import Order
from edge_agent.picture import Backlog, Picture
from edge_agent.verifier import Verifier, verdict
from fleet.errors import ProtocolError, RequestTimeout, TransportError
from fleet.ids import GenerationId, ModelVersion, RequestId, WorkerId, new_id
from fleet.logs import get_logger
from fleet.protocol.arrays import unpack_confidences, unpack_tokens
from fleet.protocol.messages import Busy, GenerationOpened, Refused, VerifyResponse
from fleet.transport.calls import Answer, CallStats, CallTimeout, LinkDownError

log = get_logger(__name__)

Reason = Literal["", "no_broker", "timeout", "busy", "refused", "cancelled"]
Result = Answer | TransportError | ProtocolError
Work = Callable[[], Awaitable[tuple[Answer, CallStats]]]

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard a picture asks the cloud. Times in seconds."""

    deadline_s: float
    window: int
    in_flight: int
    chunk: int
    start_patience_s: float
    outage_patience_s: float


@dataclass(slots=True)
class Meter:
    """What the cloud did for one picture."""

    round_trips: int = 0
    reopened: int = 0
    retries: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    forwards: int = 0
    queue_s: float = 0.0
    forward_s: float = 0.0
    cloud_version: ModelVersion = field(default_factory=lambda: ModelVersion(""))

    def add(self, answer: GenerationOpened | VerifyResponse) -> None:
        """Counts what an answer says about its making."""
        self.forwards += answer.forwards
        self.queue_s += answer.queue_s
        self.forward_s += answer.forward_s

    def cost(self, stats: CallStats) -> None:
        """Counts what a request has cost on the wire."""
        self.retries += stats.retries
        self.bytes_up += stats.bytes_up
        self.bytes_down += stats.bytes_down


class Session:
    """The cloud's side of one picture, driven by the loop in `generate.py`."""

    def __init__(
        self,
        verifier: Verifier,
        generation: GenerationId,
        order: Order,
        picture: Picture,
        plan: Plan,
    ) -> None:
        self.meter = Meter()
        self.reason: Reason = ""  # what stands between the picture and the cloud right now
        self.detail = ""
        self.has_news = False  # read by the drafting thread, which then stops early
        self.was_opened = False
        self._verifier = verifier
        self._generation = generation
        self._order = order
        self._picture = picture
        self._plan = plan
        self._group = asyncio.TaskGroup()
        self._listening = ExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: deque[tuple[RequestId, Result]] = deque()
        self._wake = asyncio.Event()
        self._worker: WorkerId | None = None
        self._opening: RequestId | None = None
        self._link_task: asyncio.Task[None] | None = None
        self._draining = self._worker_died = False
        self._failures = 0
        self._hold_until = 0.0
        self._started = self._heard = self._now()

    async def __aenter__(self) -> "Session":
        self._listening.enter_context(self._verifier.listening(self._worker_is_down))
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._listening.close()
        self._cancel_tasks()
        try:
            await self._group.__aexit__(*error)
        finally:
            await self._close()

    # ── What the loop does with it ────────────────────────────────────────────────────────

    def push(self) -> None:
        """Sends whatever may be sent now."""
        if self._picture.alone or self._now() < self._hold_until:
            return
        if not self._verifier.is_connected:
            self._await_link()
        elif self._worker is None:
            self._open()
        else:
            self._send(self._worker)

    def take(self) -> None:
        """Applies every answer that came."""
        self.has_news = False
        if self._worker_died and not self._picture.alone:
            self._lose("timeout", f"worker {self._worker} has died")
        self._worker_died = False
        while self._answers:
            request_id, answer = self._answers.popleft()
            if not self._picture.alone:
                self._take(request_id, answer)

    async def wait(self, give_up_at: float) -> None:
        """Returns when there is an answer, something to send again, or at `give_up_at`."""
        now = self._now()
        until = min(give_up_at, self._hold_until) if self._hold_until > now else give_up_at
        try:
            async with asyncio.timeout(max(0.0, until - now)):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    @property
    def patience_ends(self) -> float:
        """Loop time at which waiting for a silent cloud is over."""
        if not self.was_opened and not self._verifier.is_connected:
            return self._started + self._plan.start_patience_s
        return self._heard + self._plan.outage_patience_s

    @property
    def is_refused(self) -> bool:
        """Whether the cloud will never serve this picture."""
        return self.reason == "refused"

    def abandon(self) -> None:
        """Stops asking: the picture goes on alone."""
        if not self.reason:
            self.reason = "timeout" if self._verifier.is_connected else "no_broker"
        self._cancel_tasks()
        self._picture.fall_back()

    # ── Sending ───────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        if self._opening is not None:
            return
        self._opening = RequestId(new_id())
        work = partial(
            self._verifier.open,
            self._generation,
            self._order,
            self._sendable(self._picture.history()),
            self._time_left(),
        )
        self._start(self._ask(self._opening, work), "open")

    def _send(self, worker: WorkerId) -> None:
        if self._draining and self._picture.in_flight:
            return
        self._draining = False
        while self._picture.in_flight < self._plan.in_flight:
            backlog = self._picture.backlog()
            if backlog is None:
                return
            self._verify(worker, backlog)

    def _verify(self, worker: WorkerId, backlog: Backlog) -> None:
        request_id = RequestId(new_id())
        self._picture.asked(request_id, backlog)
        work = partial(
            self._verifier.verify,
            worker,
            self._generation,
            request_id,
            self._sendable(backlog),
            self._time_left(),
        )
        self._start(self._ask(request_id, work), f"verify from {backlog.start}")

    def _sendable(self, backlog: Backlog) -> Backlog:
        """The backlog, without its interval features where the cloud would not use them."""
        if self._order.use_features:
            return backlog
        return replace(backlog, features=backlog.features[:0])

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
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
        self.meter.cost(stats)
        self._answers.append((request_id, answer))
        self._notify()

    def _await_link(self) -> None:
        self.reason = "no_broker"
        if self._link_task is None or self._link_task.done():
            self._link_task = self._start(self._link_is_back(), "wait for the broker")

    async def _link_is_back(self) -> None:
        await self._verifier.wait_connected()
        self._notify()

    def _worker_is_down(self, worker: WorkerId) -> None:
        if worker == self._worker:
            self._worker_died = True
            self._notify()

    def _notify(self) -> None:
        self.has_news = True
        self._wake.set()

    # ── Taking ────────────────────────────────────────────────────────────────────────────

    def _take(self, request_id: RequestId, answer: Result) -> None:
        if request_id == self._opening:
            self._opening = None
        elif not self._picture.is_waiting_for(request_id):
            return  # a correction has overtaken it
        match answer:
            case GenerationOpened():
                self._opened(answer)
            case VerifyResponse():
                self._judged(request_id, answer)
            case Busy():
                self._busy(request_id, answer)
            case Refused():
                self._refused(request_id, answer)
            case TransportError() | ProtocolError():
                self._failed(answer)

    def _failed(self, error: TransportError | ProtocolError) -> None:
        match error:
            case RequestTimeout():
                self._lose("timeout", str(error))
            case TransportError():
                self._lose("no_broker", str(error))
            case ProtocolError():
                self._lose("refused", str(error), final=not self.was_opened)

    def _opened(self, answer: GenerationOpened) -> None:
        try:
            self._picture.inject(
                [int(token) for token in unpack_tokens(answer.tokens)],
                [float(value) for value in unpack_confidences(answer.confidences)],
            )
        except ProtocolError as error:
            self._lose("refused", str(error), final=True)
            return
        self.was_opened = True
        self._worker = answer.worker
        self.meter.cloud_version = answer.cloud_version
        self._answered(answer)

    def _judged(self, request_id: RequestId, answer: VerifyResponse) -> None:
        try:
            self._picture.apply(request_id, verdict(answer))
        except ProtocolError as error:
            self._lose("refused", str(error))
            return
        self._failures = 0
        self._answered(answer)

    def _answered(self, answer: GenerationOpened | VerifyResponse) -> None:
        self.meter.round_trips += 1
        self.meter.add(answer)
        self._heard = self._now()
        self.reason = ""

    def _busy(self, request_id: RequestId, answer: Busy) -> None:
        """Comes back later, spread out so that not all devices come back at once."""
        self.reason = "busy"
        self.meter.round_trips += 1
        self._heard = self._now()
        self._picture.withdraw(request_id)
        self._hold_until = self._now() + answer.retry_after_s * random.uniform(1.0, 1.5)

    def _refused(self, request_id: RequestId, answer: Refused) -> None:
        self.meter.round_trips += 1
        self._heard = self._now()
        match answer.reason:
            case "unknown_session":
                self._lose("timeout", "the worker does not know the picture")
            case "gap" if not self._picture.is_first(request_id):
                self._draining = True  # it overtook an earlier request: send again after that
                self._picture.withdraw(request_id)
            case "stale" if not self._picture.is_first(request_id):
                pass  # an earlier request's correction is on its way
            case "gap" | "stale":
                self._lose("timeout", f"out of step with the worker: {answer.reason}")
            case "invalid" | "other_family":
                self._lose("refused", answer.detail or answer.reason, final=True)

    def _lose(self, reason: Reason, detail: str, *, final: bool = False) -> None:
        """Gives the session up; the next `push` opens another, after a pause."""
        log.info("session lost", generation_id=self._generation, reason=reason, detail=detail)
        self._cancel_tasks()
        self._worker = self._opening = None
        self._draining = False
        self._picture.reopen()
        self.meter.reopened += self.was_opened
        self.reason = reason if final or reason != "refused" else "timeout"
        self.detail = detail
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._failures)
        self._hold_until = self._now() + random.uniform(0, pause) * (self._failures > 0)
        self._failures += 1

    # ── Ending ────────────────────────────────────────────────────────────────────────────

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._link_task = None

    async def _close(self) -> None:
        if self._worker is None or not self._verifier.is_connected:
            return
        try:
            async with asyncio.timeout(1.0):
                await self._verifier.close(self._worker, self._generation)
        except (TransportError, TimeoutError):
            log.debug("session not closed", generation_id=self._generation)

    def _time_left(self) -> float:
        return max(0.1, self._started + self._plan.deadline_s - self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
