"""The engine: collect → schedule → run → settle → reply, each a module of its own.

Requests come in by `submit` while a forward runs in a thread; each forward takes the jobs that
the scheduler picks from all that wait then. A forward is settled and answered while the next one
runs, if enough waits in other sessions; else before it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cloud_hub.engine.checks import Watch, ignore
from cloud_hub.engine.collect import Collector, Pace
from cloud_hub.engine.counters import Counters
from cloud_hub.engine.forward import Offload, Outcome, Step, compute, one_thread
from cloud_hub.engine.reply import Replier
from cloud_hub.engine.requests import Answer, Denied, Request, SessionKey
from cloud_hub.engine.runner import Runner
from cloud_hub.engine.scheduler import Job, Scheduler
from cloud_hub.engine.sessions import Sessions
from cloud_hub.engine.settling import settle_all
from cloud_hub.engine.steps import Reply, Task, plan

T = TypeVar("T")

_LAST_FORWARD_S = 10.0  # how long a stop waits for the forward under way


class _Ran(NamedTuple):
    """A forward that has run."""

    steps: Sequence[Step]
    outcome: Outcome


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
        self._unsettled: _Ran | None = None

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
        """Works until cancelled; then the forward under way ends and is answered."""
        while True:
            self._wake.clear()
            if not await self._whole(self._turn()):
                await self._rest()

    async def _whole(self, turn: Coroutine[None, None, T]) -> T:
        """Does a turn that a stop does not cut short."""
        task = asyncio.create_task(turn, name="forward")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_FORWARD_S):
                    await task
                    await self._settle()
            raise

    async def _turn(self) -> bool:
        """Runs what waits and settles what has run; whether there was anything to do."""
        steps = await self._plan(self._next_batch())
        if not steps:
            return await self._settle()
        forward = asyncio.create_task(self._forward(steps), name="forward")
        await asyncio.sleep(0)  # it begins
        await self._settle()
        self._unsettled = _Ran(steps, await forward)
        return True

    def _next_batch(self) -> list[Job[Task]]:
        """The next forward's jobs; none while they are too few to go before the answers."""
        if self._unsettled is None:
            return self._scheduler.next_batch(self._clock())
        held = {step.task.session for step in self._unsettled.steps}
        if not self._scheduler.half_fills(held):
            return []
        return self._scheduler.next_batch(self._clock(), held)

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
        return steps

    async def _settle(self) -> bool:
        """Settles and answers the last forward; whether there was one."""
        ran, self._unsettled = self._unsettled, None
        if ran is None:
            return False
        await self._replier.deliver(ran.steps, settle_all(ran.steps, ran.outcome))
        for task, _ in ran.steps:
            if task.looked is not None:
                self.watch(task.session, task.looked)
                task.looked = None
        return True

    async def _forward(self, steps: Sequence[Step]) -> Outcome:
        started = self._clock()
        outcome = await self._offload(lambda: compute(self._runner, steps, self._clock, started))
        tokens = sum(step.span.tokens for step in steps)
        self._scheduler.observe(tokens, outcome.forward_s)
        self.counters.batch(len(steps), tokens, outcome.forward_s)
        return outcome
