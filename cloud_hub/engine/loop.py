"""The engine: collect → schedule → run → settle → reply, each a module of its own.

Requests come in by `submit` while a forward runs in a thread; each forward takes the jobs that
the scheduler picks from all that wait just before the last one ends. A forward is settled and
answered while the next one runs, if enough waits in other sessions; else before it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloud_hub.engine.checks import Watch, ignore
from cloud_hub.engine.collect import Collector, Pace
from cloud_hub.engine.counters import Counters
from cloud_hub.engine.forward import Offload, Outcome, Step, one_thread, prepared
from cloud_hub.engine.reply import Replier
from cloud_hub.engine.requests import Answer, Denied, Request, SessionKey
from cloud_hub.engine.runner import Runner
from cloud_hub.engine.scheduler import Job, Scheduler
from cloud_hub.engine.sessions import Sessions
from cloud_hub.engine.settling import settle_all
from cloud_hub.engine.steps import Reply, Task, plan

_LAST_FORWARDS_S = 10.0  # how long a stop waits for the forwards under way
_LEAD_S = 0.01  # to choose and prepare a forward in, though the last one ends sooner than expected


@dataclass(slots=True)
class _Forward:
    """A forward on its way."""

    steps: Sequence[Step]
    tokens: int
    outcome: asyncio.Future[Outcome]
    ends_at: float  # as far as the forecast knows


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine holds at one moment."""

    jobs: int  # requests that wait for a forward
    tokens: int  # of their next forwards
    sessions: int
    slots: int


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
        offload: Offload | None = None,
    ) -> None:
        """`offload` calls what computes away from the event loop; a thread of its own does else."""
        self.counters = Counters()
        self.watch: Watch = ignore  # gets what a forward says of drafts, after its answers
        self.is_idle = False  # no forward runs, and nothing waits that could
        self._runner = runner
        self._sessions = sessions
        self._scheduler = scheduler
        self._pace = pace
        self._clock = clock
        self._offload = offload or one_thread()
        self._collector = Collector(sessions, scheduler, pace, clock, self.counters)
        self._replier = Replier(self._collector, self.counters)
        self._wake = asyncio.Event()
        self._running: _Forward | None = None  # it may wait for the one before
        self._stops = False

    def submit(self, request: Request, reply: Reply) -> Answer | None:
        """Takes a request; an answer if no forward is needed, None if `reply` will be called."""
        answer = self._collector.submit(request, reply)
        self._wake.set()
        return answer

    def close(self, key: SessionKey) -> None:
        """Ends a session for its device; its waiting requests are dropped."""
        self._collector.close(key)

    @property
    def load(self) -> Load:
        """What it holds at this moment."""
        return Load(
            jobs=len(self._scheduler),
            tokens=self._scheduler.waiting_tokens,
            sessions=len(self._sessions),
            slots=self._sessions.slots,
        )

    async def run(self) -> None:
        """Works until cancelled; then the forwards under way end and are answered."""
        work = asyncio.create_task(self._work(), name="forwards")
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stops = True
            self._wake.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_FORWARDS_S):
                    await work
            raise

    async def _work(self) -> None:
        while not self._stops:
            self._wake.clear()
            if not await self._turn():
                await self._rest()
        last, self._running = self._running, None
        await self._finish(last)

    async def _turn(self) -> bool:
        """Begins the next forward and answers the last one; whether there was either."""
        last = self._running
        steps = await self._next_steps(last)
        self._running = self._begin(steps)
        await self._finish(last)
        return last is not None or bool(steps)

    async def _next_steps(self, last: _Forward | None) -> list[Step]:
        """Those of the next forward: chosen just before the last one ends, to follow it at once.

        If too few wait then to go before the last one's answers, they are chosen at its end.
        """
        if last is None:
            return await self._plan(self._scheduler.next_batch(self._clock()))
        held = {step.task.session for step in last.steps}
        for wait_s in (max(last.ends_at - _LEAD_S - self._clock(), 0), None):
            await asyncio.wait([last.outcome], timeout=wait_s)
            if self._scheduler.half_fills(held):
                return await self._plan(self._scheduler.next_batch(self._clock(), held))
        return []

    async def _rest(self) -> None:
        """Waits for a request, or until a node's pause is over."""
        self._collector.expire()
        self.is_idle = True
        pause_s = self._scheduler.pause_s
        if pause_s is None:
            await self._wake.wait()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
        self.is_idle = False

    async def _plan(self, batch: Sequence[Job[Task]]) -> list[Step]:
        """The forward's steps; what cannot run is answered here."""
        steps = []
        for job in batch:
            task, now = job.work, self._clock()
            task.queue_s += now - task.queued_at
            if task.forwards == 0 and now > task.deadline:
                await self._replier.give_back(task, self._scheduler.retry_after_s)
                continue
            span = plan(task, self._pace.chunk)
            if isinstance(span, Denied):
                await self._replier.answer(task, span)
            else:
                steps.append(Step(task, span))
        if batch and not steps:
            self._scheduler.withdraw()
        return steps

    def _begin(self, steps: Sequence[Step]) -> _Forward | None:
        """Runs the steps as soon as no forward runs any more; None: there are none."""
        if not steps:
            return None
        tokens = sum(step.span.tokens for step in steps)
        work = prepared(self._runner, steps, self._clock)
        outcome = asyncio.ensure_future(self._offload(work))
        return _Forward(steps, tokens, outcome, self._ends_at(tokens))

    def _ends_at(self, tokens: int) -> float:
        """When a forward of so many tokens would have ended that began now."""
        return self._clock() + self._scheduler.forecast.seconds(1, tokens)

    async def _finish(self, forward: _Forward | None) -> None:
        """Settles and answers a forward, once it has run."""
        if forward is None:
            return
        outcome = await forward.outcome
        if self._running is not None:
            self._running.ends_at = self._ends_at(self._running.tokens)
        self._scheduler.observe(forward.tokens, outcome.forward_s)
        self.counters.batch(len(forward.steps), forward.tokens, outcome.forward_s)
        await self._replier.deliver(forward.steps, settle_all(forward.steps, outcome))
        for task, _ in forward.steps:
            if task.looked is not None:
                self.watch(task.session, task.looked)
                task.looked = None
