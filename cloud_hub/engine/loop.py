"""The engine: collect → schedule → run → reply.

Requests come in by `submit` while a forward runs in a thread; each forward takes the jobs that
the scheduler picks from all that wait then. Bounded: sessions by slots, jobs by the scheduler;
beyond either a request is answered `Full` at once.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cloud_hub.engine.checks import Watch, ignore
from cloud_hub.engine.counters import Counters
from cloud_hub.engine.requests import (
    Answer,
    Backlog,
    Denied,
    Full,
    Judged,
    Logits,
    Opened,
    Opening,
    Reason,
    Request,
    SessionKey,
    same_opening,
)
from cloud_hub.engine.runner import Runner, Span
from cloud_hub.engine.scheduler import Job, QueueFullError, Scheduler
from cloud_hub.engine.sessions import Session, Sessions
from cloud_hub.engine.steps import Reply, Task, estimate, plan, settle
from fleet.logs import get_logger

log = get_logger(__name__)

_LAST_FORWARD_S = 10.0  # how long a stop waits for the forward under way
_FAILED_RETRY_S = 1.0
_SLOT_WAIT_S = 0.5  # a picture takes about a second; asking more often frees no slot


@dataclass(frozen=True, slots=True)
class Pace:
    """How the engine takes its time."""

    chunk: int  # history tokens of one forward
    max_deadline_s: float  # no request waits longer, whatever it asks for


class Step(NamedTuple):
    """A task and its span in the forward under way."""

    task: Task
    span: Span


class Outcome(NamedTuple):
    """How long a forward took, and what became of each step; no answers if it failed."""

    forward_s: float
    answers: list[Answer | None] | None


Offload = Callable[[Callable[[], Outcome]], Awaitable[Outcome]]


class Engine:
    """Answers openings and backlogs of many sessions with few forwards."""

    def __init__(
        self,
        *,
        runner: Runner,
        sessions: Sessions,
        scheduler: Scheduler[Task],
        pace: Pace,
        clock: Callable[[], float],
        offload: Offload = asyncio.to_thread,
    ) -> None:
        """`offload` calls what computes away from the event loop."""
        self.counters = Counters()
        self.watch: Watch = ignore  # gets what a forward says of drafts, after its answers
        self._runner = runner
        self._sessions = sessions
        self._scheduler = scheduler
        self._pace = pace
        self._clock = clock
        self._offload = offload
        self._wake = asyncio.Event()
        self._opening: dict[SessionKey, Task] = {}  # openings on their way

    # ── Collect ───────────────────────────────────────────────────────────────────────────

    def submit(self, request: Request, reply: Reply) -> Answer | None:
        """Takes a request; answers at once if no forward is needed, else calls `reply` later.

        A repeat is answered as it was before; a repeat of what still waits is dropped.
        """
        now = self._clock()
        session = self._sessions.find(request.key, now)
        if session is not None and request.request_id in session.answers:
            self.counters.repeated += 1
            return session.answers[request.request_id]
        if session is not None and request.request_id in session.waiting:
            self.counters.repeated += 1
            session.waiting[request.request_id] = self._deadline(request, now)
            return None
        answer = self._admit(request, session, reply, now)
        if answer is not None:
            self._count(answer)
        return answer

    def close(self, key: SessionKey) -> None:
        """Ends a session; its waiting requests are dropped."""
        session = self._sessions.close(key)
        self._opening.pop(key, None)
        if session is not None:
            self._scheduler.cancel(session)

    def _admit(
        self, request: Request, session: Session | None, reply: Reply, now: float
    ) -> Answer | None:
        if isinstance(request, Opening):
            if session is not None and self._adopt(request, session, reply, now):
                return None
            self.close(request.key)
            before = len(self._sessions)
            session = self._sessions.open(request, now)
            self.counters.evicted += session is not None and len(self._sessions) == before
        if session is None:
            if isinstance(request, Opening):
                return Full(max(self._scheduler.retry_after_s, _SLOT_WAIT_S))
            return Denied(Reason.UNKNOWN_SESSION)
        session.waiting[request.request_id] = self._deadline(request, now)
        task = Task(request, session, reply, queued_at=now)
        try:
            self._scheduler.submit(self._job(task, estimate(request, self._pace.chunk)))
        except QueueFullError as full:
            del session.waiting[request.request_id]
            if isinstance(request, Opening):
                self._sessions.close(request.key)
            return Full(full.retry_after_s)
        if isinstance(request, Opening):
            self._opening[request.key] = task
        self._wake.set()
        return None

    def _adopt(self, request: Opening, session: Session, reply: Reply, now: float) -> bool:
        """Gives an opening on its way to a device that asks for the same under a new id.

        Otherwise a hub slower than the device's patience would begin again for ever.
        """
        task = self._opening.get(request.key)
        if task is None or not same_opening(task.request, request):
            return False
        self.counters.repeated += 1
        session.waiting.pop(task.request.request_id, None)
        session.waiting[request.request_id] = self._deadline(request, now)
        task.request, task.reply = request, reply
        return True

    def _deadline(self, request: Request, now: float) -> float:
        return now + min(request.deadline_s, self._pace.max_deadline_s)

    @staticmethod
    def _job(task: Task, tokens: int) -> Job[Task]:
        return Job(task.session, task.request.key.node, task.deadline, tokens, task)

    # ── Schedule → run → reply ────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Works until cancelled; then the forward under way ends and is answered."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._sessions.expire(self._clock())
            while len(self._scheduler):
                await self._run_batch(await self._schedule())

    async def _schedule(self) -> list[Step]:
        """The next forward's steps; what cannot run is answered here."""
        steps = []
        for job in self._scheduler.next_batch():
            task, now = job.work, self._clock()
            task.queue_s += now - task.queued_at
            if task.forwards == 0 and now > task.deadline:
                await self._give_back(task)
                continue
            span = plan(task, self._pace.chunk)
            if isinstance(span, Denied):
                await self._reply(task, span)
            else:
                steps.append(Step(task, span))
        return steps

    async def _run_batch(self, steps: Sequence[Step]) -> None:
        if not steps:
            return
        started = self._clock()
        forward = asyncio.create_task(self._run_away(steps, started), name="forward")
        try:
            outcome = await asyncio.shield(forward)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_FORWARD_S):
                    await self._deliver(steps, await forward)
            raise
        await self._deliver(steps, outcome)

    async def _run_away(self, steps: Sequence[Step], started: float) -> Outcome:
        return await self._offload(lambda: self._compute(steps, started))

    def _compute(self, steps: Sequence[Step], started: float) -> Outcome:
        """Runs in a thread; touches only the sessions of the steps."""
        try:
            rows = self._runner.run([step.span for step in steps])
            forward_s = self._clock() - started
            answers = [
                self._settle(step, logits, forward_s)
                for step, logits in zip(steps, rows, strict=True)
            ]
            return Outcome(forward_s, answers)
        except Exception:
            log.exception("forward_failed", spans=len(steps))
            return Outcome(self._clock() - started, None)

    @staticmethod
    def _settle(step: Step, rows: Logits, forward_s: float) -> Answer | None:
        step.task.forwards += 1
        step.task.forward_s += forward_s
        return settle(step.task, step.span, rows)

    def _measure(self, steps: Sequence[Step], forward_s: float) -> None:
        tokens = sum(step.span.tokens for step in steps)
        self.counters.forwards += 1
        self.counters.spans += len(steps)
        self.counters.tokens += tokens
        self.counters.forward_s += forward_s
        self._scheduler.observe(tokens, forward_s)

    async def _deliver(self, steps: Sequence[Step], outcome: Outcome) -> None:
        self._measure(steps, outcome.forward_s)
        if outcome.answers is None:
            await self._give_up(steps)
            return
        for (task, _), answer in zip(steps, outcome.answers, strict=True):
            if not task.session.is_open:
                continue
            if answer is None:
                self._resume(task)
            else:
                await self._reply(task, answer)
        for task, _ in steps:
            if task.looked is not None:
                self.watch(task.session, task.looked)
                task.looked = None

    async def _give_up(self, steps: Sequence[Step]) -> None:
        """The forward failed: what its slots hold is unknown, so their sessions end."""
        self.counters.failed += 1
        for task, _ in steps:
            if task.session.is_open:
                await self._reply(task, Full(_FAILED_RETRY_S))
                await self._end(task.session)

    async def _end(self, session: Session) -> None:
        """Closes a session for the engine's own reasons, and tells those who wait for it."""
        if self._sessions.close(session.key) is None:
            return
        self._opening.pop(session.key, None)
        for task in self._scheduler.cancel(session):
            await self._reply(task, Denied(Reason.UNKNOWN_SESSION))

    def _resume(self, task: Task) -> None:
        task.queued_at = self._clock()
        session = task.session
        waiting = min(session.length - session.cached, self._pace.chunk)
        self._scheduler.resume(self._job(task, max(waiting, 1)))

    async def _reply(self, task: Task, answer: Answer) -> None:
        # Idle time begins with the answer: else a slow forward's sessions were the first to go.
        self._sessions.touch(task.session, self._clock())
        task.session.waiting.pop(task.request.request_id, None)
        if self._opening.get(task.request.key) is task:
            del self._opening[task.request.key]
        if isinstance(answer, Opened | Judged):
            task.session.remember(task.request.request_id, answer)
        self._count(answer, task.request)
        await task.reply(answer)

    async def _give_back(self, task: Task) -> None:
        """The deadline passed before the request's turn: whoever still listens may ask again."""
        self.counters.late += 1
        await self._reply(task, Full(self._scheduler.retry_after_s))
        if isinstance(task.request, Opening):
            await self._end(task.session)

    def _count(self, answer: Answer, request: Request | None = None) -> None:
        match answer:
            case Opened(tokens=tokens):
                self.counters.opened += 1
                self.counters.prefix_tokens += len(tokens)
            case Judged(accepted=accepted, confidences=judged):
                self.counters.verified += 1
                self.counters.judged += len(judged)
                if isinstance(request, Backlog):
                    self.counters.corrected += accepted < len(request.run)
            case Full():
                self.counters.full += 1
            case Denied(reason=reason):
                self.counters.denied[reason.value] += 1
