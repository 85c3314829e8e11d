"""Collect: what comes in is answered at once, refused, or becomes a job of the scheduler.

Bounded: sessions by slots, jobs by the scheduler; beyond either the answer is `Full`, at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cloud_hub.engine.counters import Counters
from cloud_hub.engine.requests import (
    Answer,
    Denied,
    Full,
    Opening,
    Reason,
    Request,
    SessionKey,
    same_opening,
)
from cloud_hub.engine.scheduler import AdmissionError, Job, Scheduler
from cloud_hub.engine.sessions import Session, Sessions
from cloud_hub.engine.steps import Reply, Task, estimate, forwards

_SLOT_WAIT_S = 0.5  # a picture takes about a second; asking more often frees no slot


@dataclass(frozen=True, slots=True)
class Pace:
    """How the engine takes its time."""

    chunk: int  # history tokens of one forward
    max_deadline_s: float  # no request waits longer, whatever it asks for


class Collector:
    """The engine's desk: it alone opens sessions and queues jobs."""

    def __init__(
        self,
        sessions: Sessions,
        scheduler: Scheduler[Task],
        pace: Pace,
        clock: Callable[[], float],
        counters: Counters,
    ) -> None:
        self._sessions = sessions
        self._scheduler = scheduler
        self._pace = pace
        self._clock = clock
        self._counters = counters
        self._opening: dict[SessionKey, Task] = {}  # openings on their way

    def submit(self, request: Request, reply: Reply) -> Answer | None:
        """Takes a request; an answer if no forward is needed, None if `reply` will be called.

        A repeat is answered as it was before; a repeat of what still waits is dropped.
        """
        now = self._clock()
        session = self._sessions.find(request.key, now)
        if session is not None and request.request_id in session.answers:
            self._counters.repeated += 1
            return session.answers[request.request_id]
        if session is not None and request.request_id in session.waiting:
            self._counters.repeated += 1
            session.waiting[request.request_id] = self._deadline(request, now)
            return None
        answer = self._admit(request, session, reply, now)
        if answer is not None:
            self._counters.count(answer)
        return answer

    def resume(self, task: Task) -> None:
        """Queues the next forward of a request that needs more than one."""
        task.queued_at = self._clock()
        session = task.session
        waiting = min(session.length - session.cached, self._pace.chunk)
        self._scheduler.resume(self._job(task, max(waiting, 1)))

    def finish(self, task: Task) -> float:
        """Forgets a request that is answered; returns the seconds since its arrival.

        Idle time begins with the answer: else the sessions of a slow forward were the first to go.
        """
        task.session.waiting.pop(task.request.request_id, None)
        if self._opening.get(task.request.key) is task:
            del self._opening[task.request.key]
        now = self._clock()
        self._sessions.touch(task.session, now)
        return now - task.arrived

    def close(self, key: SessionKey) -> list[Task]:
        """Ends a session; returns the requests that waited for it."""
        session = self._sessions.close(key)
        self._opening.pop(key, None)
        return [] if session is None else self._scheduler.cancel(session)

    def expire(self) -> None:
        """Ends the sessions that nobody used for long."""
        self._sessions.expire(self._clock())

    def _admit(
        self, request: Request, session: Session | None, reply: Reply, now: float
    ) -> Answer | None:
        if isinstance(request, Opening):
            if session is not None and self._adopt(request, session, reply, now):
                return None
            self.close(request.key)
            before = len(self._sessions)
            session = self._sessions.open(request, now)
            self._counters.evicted += session is not None and len(self._sessions) == before
        if session is None:
            if isinstance(request, Opening):
                return Full(max(self._scheduler.retry_after_s, _SLOT_WAIT_S))
            return Denied(Reason.UNKNOWN_SESSION)
        session.waiting[request.request_id] = self._deadline(request, now)
        task = Task(request, session, reply, arrived=now, queued_at=now)
        try:
            self._scheduler.submit(self._job(task, estimate(request, self._pace.chunk)))
        except AdmissionError as refusal:
            del session.waiting[request.request_id]
            if isinstance(request, Opening):
                self._sessions.close(request.key)
            return Full(refusal.retry_after_s)
        if isinstance(request, Opening):
            self._opening[request.key] = task
        return None

    def _adopt(self, request: Opening, session: Session, reply: Reply, now: float) -> bool:
        """Gives an opening on its way to a device that asks for the same under a new id.

        Otherwise a hub slower than the device's patience would begin again for ever.
        """
        task = self._opening.get(request.key)
        if task is None or not same_opening(task.request, request):
            return False
        self._counters.repeated += 1
        session.waiting.pop(task.request.request_id, None)
        session.waiting[request.request_id] = self._deadline(request, now)
        task.request, task.reply = request, reply
        return True

    def _deadline(self, request: Request, now: float) -> float:
        return now + min(request.deadline_s, self._pace.max_deadline_s)

    def _job(self, task: Task, tokens: int) -> Job[Task]:
        return Job(
            session=task.session,
            node=task.request.key.node,
            arrived=task.arrived,
            deadline=task.deadline,
            tokens=tokens,
            work=task,
            forwards=forwards(task.request, self._pace.chunk),
        )
