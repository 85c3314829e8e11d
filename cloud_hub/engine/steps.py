"""What a request needs of the next forward, and what it makes of the forward's logits; pure."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from cloud_hub.engine.checks import Looked
from cloud_hub.engine.judging import Drawing, drawn, judged, taught
from cloud_hub.engine.requests import (
    Answer,
    Backlog,
    Cost,
    Denied,
    Judged,
    Logits,
    Opened,
    Opening,
    Reason,
    Request,
)
from cloud_hub.engine.runner import Span
from cloud_hub.engine.sessions import Session

Reply = Callable[[Answer], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Task:
    """One admitted request on its way through one forward (a backlog) or several (an opening)."""

    request: Request
    session: Session
    reply: Reply
    arrived: float
    queued_at: float  # of its next forward
    forwards: int = 0
    queue_s: float = 0.0
    forward_s: float = 0.0
    confidences: list[float] = field(default_factory=list)
    condition: bytes = b""  # what its caption means, if the device asks
    looked: Looked | None = None  # drafts that the last forward says something about

    @property
    def deadline(self) -> float:
        """Until when somebody waits; a repeat moves it."""
        return self.session.waiting[self.request.request_id]

    @property
    def cost(self) -> Cost:
        """What the request took so far."""
        return Cost(self.forwards, self.queue_s, self.forward_s)


def plan(task: Task, chunk: int) -> Span | Denied:
    """The span that the request runs next, of at most `chunk` tokens while a history is run."""
    match task.request:
        case Opening() as opening:
            return _plan_opening(opening, task.session, chunk)
        case Backlog() as backlog:
            return _plan_backlog(backlog, task.session)


def settle(task: Task, span: Span, rows: Logits) -> Drawing[Answer | None]:
    """Moves the session on by the span's logits [n, V]; the answer, once there is one."""
    match task.request:
        case Opening() as opening:
            return _settle_opening(task, opening, span, rows)
        case Backlog() as backlog:
            return _settle_backlog(task, backlog, span, rows)


def estimate(request: Request, chunk: int) -> int:
    """Tokens of the request's first span."""
    match request:
        case Opening(history=history):
            return 1 + min(len(history), chunk)
        case Backlog(run=run):
            return 1 + len(run)


def forwards(request: Request, chunk: int) -> int:
    """Forwards that the request needs, if no more of its history becomes known."""
    match request:
        case Opening(history=history, prefix_tokens=prefix_tokens):
            chunks = -(-len(history) // chunk)
            return max(chunks, 1) + max(prefix_tokens - max(len(history), 1), 0)
        case Backlog():
            return 1


# ── Opening: the history in chunks, then one drawn token a forward ────────────────────────


def _plan_opening(opening: Opening, session: Session, chunk: int) -> Span:
    begins = session.first is None
    if begins:
        session.write(0, opening.history)
    end = min(session.length, session.cached + chunk)
    return Span(
        slot=session.slot,
        start=session.cached,
        run=session.known(session.cached, end),
        guidance=session.sampling.guidance,
        use_features=session.use_features,
        caption=session.caption if begins else None,
    )


def _settle_opening(
    task: Task, opening: Opening, span: Span, rows: Logits
) -> Drawing[Opened | None]:
    session = task.session
    task.looked = _looked_history(session, span, rows)
    if span.caption is not None:
        session.first = rows[0]
    session.cached, session.ahead = span.start + len(span.run), rows[-1]
    if session.cached == session.length < opening.prefix_tokens:
        found = yield from drawn(session, np.array([session.length]), rows[-1:])
        session.put(int(found.tokens[0]))
        task.confidences.extend(found.probabilities.tolist())
    # The last prefix token needs no forward of its own: the first backlog's takes it along.
    if session.length < opening.prefix_tokens or session.cached < len(opening.history):
        return None
    prefix = session.tokens[len(opening.history) : session.length]
    confidences = tuple(task.confidences)
    return Opened(tuple(prefix.tolist()), confidences, task.cost, task.condition)


def _looked_history(session: Session, span: Span, rows: Logits) -> Looked | None:
    """What a part of a history says of the drafts in it that the device accepted by itself."""
    if span.caption is None and session.ahead is None:
        return None
    laws = (
        rows
        if session.ahead is None or span.caption is not None
        else (np.concatenate([session.ahead[None], rows]))
    )
    return Looked(span.start, span.run, span.run.local, laws[: len(span.run)])


# ── Backlog: one forward over its tokens and whatever known token is not in the cache ─────


def _plan_backlog(backlog: Backlog, session: Session) -> Span | Denied:
    if backlog.branch != session.branch:
        older = backlog.branch < session.branch
        return Denied(Reason.STALE if older else Reason.UNKNOWN_SESSION)
    if backlog.start > session.length:
        return Denied(Reason.GAP, expected=session.length)
    if session.rule.name == "residual" and len(backlog.laws) != backlog.uncertain.sum():
        return Denied(Reason.INVALID, detail="the residual rule needs each uncertain draft's law")
    session.rewind(backlog.start)
    session.write(backlog.start, backlog.run)
    return Span(
        slot=session.slot,
        start=session.cached,
        run=session.known(session.cached, backlog.end),
        guidance=session.sampling.guidance,
        use_features=session.use_features,
    )


def _settle_backlog(task: Task, backlog: Backlog, span: Span, rows: Logits) -> Drawing[Judged]:
    session = task.session
    laws = _laws_from(backlog.start, session, span, rows)
    verdict, confidences = yield from judged(session, backlog, laws)
    stands = slice(0, min(verdict.accepted + 1, len(backlog.run)))  # or fell, as the first one
    drafted = backlog.uncertain | backlog.run.local
    task.looked = Looked(backlog.start, backlog.run.part(stands), drafted[stands], laws[stands])
    if verdict.accepted < len(backlog.run):
        session.length = session.cached = backlog.start + verdict.accepted
        session.put(verdict.next_token)
        session.branch += 1
    else:
        session.cached = backlog.end
    session.ahead = laws[verdict.accepted]
    lessons = yield from taught(session, task.looked)
    shown = np.count_nonzero(backlog.uncertain[: verdict.accepted + 1])
    return Judged(
        session.branch,
        verdict.accepted,
        verdict.next_token,
        tuple(confidences[:shown]),
        task.cost,
        lessons,
    )


def _laws_from(start: int, session: Session, span: Span, rows: Logits) -> Logits:
    """The logits [n + 1, V] of the backlog's positions and of the one after it."""
    if span.start == start:
        assert session.ahead is not None
        return np.concatenate([session.ahead[None], rows])
    return rows[start - 1 - span.start :]
