"""Which waiting jobs run in the next forward: earliest deadline first, a fair share for each node.

Holds no tensors and reads no clock. The queue is bounded, and a job that would not be done by its
deadline is not let in: `submit` then says when to come back, and nothing that waits is dropped
for what comes later.
"""

import heapq
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cloud_hub.engine.forecast import Forecast
from cloud_hub.engine.shares import Shares
from fleet.errors import CapacityError
from fleet.ids import NodeId

W = TypeVar("W")

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.05, 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the queue and of one forward."""

    jobs: int  # waiting jobs of all nodes
    node_jobs: int  # waiting jobs of one node
    batch_tokens: int  # tokens of one forward
    batch_spans: int  # spans of one forward
    quantum: int  # tokens by which a node may lead the least served one that waits
    aging_s: float  # a job that waited so long goes before all that come after
    node_share: float  # part of the engine's time that any node may have, however many there are

    def __post_init__(self) -> None:
        sizes = (self.jobs, self.node_jobs, self.batch_tokens, self.batch_spans, self.quantum)
        if min(sizes) < 1 or min(self.aging_s, self.node_share) <= 0:
            raise ValueError("a limit of the scheduler is a positive number")


@dataclass(frozen=True, slots=True)
class Job(Generic[W]):
    """One span to run. Jobs of one session run in their order, one a batch."""

    session: Hashable
    node: NodeId
    arrived: float
    deadline: float
    tokens: int
    work: W
    forwards: int = 1  # that the request needs in all


class AdmissionError(CapacityError):
    """The job is not let in: a queue is full, or it would be late."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(f"{why}: come back after {retry_after_s:.2f} s")
        self.retry_after_s = retry_after_s


class Scheduler(Generic[W]):
    """A bounded queue of jobs that yields batches.

    Fairness is deficit round robin with deadlines inside a round: a node is eligible while it
    leads the least served waiting node by at most `quantum` tokens, and among the eligible the
    earliest deadline goes first. In company of other nodes, no node takes more than `quantum`
    tokens of one forward, or one job, nor more than its share of the time (`Shares`). So a node
    with many jobs waits for itself only.

    Nothing starves: a deadline counts as `aging_s` after arrival at the latest, so a job that
    waited as long goes before all that came later, and in the end its node is the least served.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queues: dict[Hashable, deque[tuple[int, Job[W]]]] = {}
        self._jobs: dict[NodeId, int] = {}  # waiting jobs by node
        self._waiting: dict[NodeId, int] = {}  # their tokens
        self._served: dict[NodeId, float] = {}  # tokens; compared among waiting nodes only
        self._all_jobs = self._all_tokens = 0  # that wait
        self._order = 0
        self._running: deque[dict[NodeId, int]] = deque()  # tokens of the forwards under way
        self._shares = Shares(limits.node_share)
        self._pause_s: float | None = None
        self.forecast = Forecast()

    def __len__(self) -> int:
        return self._all_jobs

    @property
    def waiting_tokens(self) -> int:
        """Tokens of all waiting jobs."""
        return self._all_tokens

    @property
    def retry_after_s(self) -> float:
        """When what waits now will have run."""
        if not self.forecast.is_known:
            return 1.0
        return _bounded(self._seconds(self.waiting_tokens, len(self)))

    def submit(self, job: Job[W]) -> None:
        """Queues a job behind those of its session.

        Raises:
            AdmissionError: All jobs, or the node's, are as many as may wait; or the job would not
                be done by its deadline.
        """
        if len(self) >= self._limits.jobs:
            raise AdmissionError("the hub's queue is full", self.retry_after_s)
        if self._jobs.get(job.node, 0) >= self._limits.node_jobs:
            raise AdmissionError("the node's queue is full", self.retry_after_s)
        late_s = self.predict(job) - (job.deadline - job.arrived)
        # An idle engine takes everything: a forecast that is never tried could be wrong for ever.
        if late_s > 0 and (len(self) or self._running):
            raise AdmissionError("the answer would be late", _bounded(late_s))
        self._add(job).append((self._order, job))

    def resume(self, job: Job[W]) -> None:
        """Queues the next step of admitted work: never refused, first of its session."""
        self._add(job).appendleft((self._order, job))

    def predict(self, job: Job[W]) -> float:
        """Seconds from now until the job is done, if it came in now; 0 before any forward.

        Fairness bounds what goes before it: its own node's jobs, and of every other waiting node
        no more than that and a quantum. Each further forward of the request is a mean one.
        """
        own = self._waiting.get(job.node, 0) + job.tokens
        fair = own + self._limits.quantum
        others = [min(n, fair) for node, n in self._waiting.items() if n and node != job.node]
        part = max(self._limits.quantum if others else self._limits.batch_tokens, job.tokens)
        wait_s = self._seconds(own + sum(others), len(others) + 1, at_least=-(-own // part))
        running = sum(sum(tokens.values()) for tokens in self._running)
        under_way_s = self.forecast.seconds(len(self._running), running)
        return under_way_s + wait_s + (job.forwards - 1) * self.forecast.mean_s

    def cancel(self, session: Hashable) -> list[W]:
        """Removes a session's waiting jobs; returns their work."""
        removed = [job for _, job in self._queues.pop(session, ())]
        for job in removed:
            self._forget(job)
        return [job.work for job in removed]

    def observe(self, tokens: int, seconds: float) -> None:
        """Tells how long the forward of so many tokens took that has just ended.

        Forwards end in the order of their batches.
        """
        self.forecast.observe(tokens, seconds)
        if self._running:
            self._shares.charge(self._running.popleft(), seconds)

    def withdraw(self) -> None:
        """Tells that the last batch needed no forward."""
        self._running.pop()

    @property
    def pause_s(self) -> float | None:
        """After an empty batch: when to ask again; None: when something was submitted."""
        return self._pause_s

    def half_fills(self, held: Collection[Hashable]) -> bool:
        """Whether what waits in other sessions than the held ones is half of a forward."""
        heads = [queue[0][1] for session, queue in self._queues.items() if session not in held]
        tokens = sum(job.tokens for job in heads)
        limits = self._limits
        return 2 * tokens >= limits.batch_tokens or 2 * len(heads) >= limits.batch_spans

    def next_batch(self, now: float, held: Collection[Hashable] = ()) -> list[Job[W]]:
        """Removes and returns the jobs of the next forward; none if all that waits has to pause.

        The sessions `held` wait for something else, and for no pause.
        """
        if not self._all_jobs:
            return self._empty_batch()
        heads = self._heads(held)
        alone = self._drop_paused(heads, now)
        taken: dict[NodeId, int] = {}
        waiting = [(self._served[node], node) for node in heads]
        heapq.heapify(waiting)
        eligible: list[tuple[float, int, Hashable, NodeId]] = []
        batch: list[Job[W]] = []
        level = 0.0
        while (waiting or eligible) and len(batch) < self._limits.batch_spans:
            if not eligible:
                level = waiting[0][0]
            while waiting and waiting[0][0] <= level + self._limits.quantum:
                node = heapq.heappop(waiting)[1]
                heapq.heappush(eligible, (*heapq.heappop(heads[node]), node))
            _, _, session, node = heapq.heappop(eligible)
            needed = self._queues[session][0][1].tokens
            if batch and sum(taken.values()) + needed > self._limits.batch_tokens:
                break
            part = taken.get(node, 0)
            if part and not alone and part + needed > self._limits.quantum:
                continue  # the node has its part of this forward
            taken[node] = part + needed
            batch.append(self._take(session))
            if heads[node]:
                heapq.heappush(waiting, (self._served[node], node))
        self._close_batch(taken)
        return batch

    def _heads(self, held: Collection[Hashable]) -> dict[NodeId, list[tuple[float, int, Hashable]]]:
        """By node, a heap of the first jobs of its sessions: (due, order, session)."""
        heads: dict[NodeId, list[tuple[float, int, Hashable]]] = {}
        for session, queue in self._queues.items():
            if session in held:
                continue
            order, job = queue[0]
            due = min(job.deadline, job.arrived + self._limits.aging_s)
            heapq.heappush(heads.setdefault(job.node, []), (due, order, session))
        return heads

    def _drop_paused(self, heads: dict[NodeId, Any], now: float) -> bool:
        """Leaves out the nodes that had their share; whether a node is alone."""
        self._shares.fade(now)
        company = self._shares.company(heads)
        allowance = self._shares.allowance(company)
        pauses = {node: self._shares.pause_s(node, allowance) for node in heads}
        for node in [node for node, pause_s in pauses.items() if pause_s]:
            del heads[node]
        self._pause_s = min(pauses.values(), default=None)
        return company <= 1

    def _empty_batch(self) -> list[Job[W]]:
        self._pause_s = None
        self._forget_idle_nodes()
        return []

    def _close_batch(self, taken: dict[NodeId, int]) -> None:
        if taken:
            self._running.append(taken)
        self._forget_idle_nodes()

    def _seconds(self, tokens: int, spans: int, at_least: int = 1) -> float:
        by_tokens = -(-tokens // self._limits.batch_tokens)
        by_spans = -(-spans // self._limits.batch_spans)
        return self.forecast.seconds(max(by_tokens, by_spans, at_least), tokens)

    def _add(self, job: Job[W]) -> deque[tuple[int, Job[W]]]:
        jobs = self._jobs.get(job.node, 0)
        if not jobs:
            # A node that comes back does not claim the time in which it asked for nothing.
            served = [self._served[node] for node, waiting in self._jobs.items() if waiting]
            level = min(served, default=0.0)
            self._served[job.node] = max(level, self._served.get(job.node, level))
        self._jobs[job.node] = jobs + 1
        self._waiting[job.node] = self._waiting.get(job.node, 0) + job.tokens
        self._all_jobs += 1
        self._all_tokens += job.tokens
        self._order += 1
        return self._queues.setdefault(job.session, deque())

    def _take(self, session: Hashable) -> Job[W]:
        queue = self._queues[session]
        _, job = queue.popleft()
        if not queue:
            del self._queues[session]
        self._forget(job)
        self._served[job.node] += job.tokens
        return job

    def _forget(self, job: Job[W]) -> None:
        self._jobs[job.node] -= 1
        self._waiting[job.node] -= job.tokens
        self._all_jobs -= 1
        self._all_tokens -= job.tokens

    def _forget_idle_nodes(self) -> None:
        """Drops nodes that wait for nothing and lead nobody who waits."""
        if not self._all_jobs:
            self._jobs.clear()
            self._waiting.clear()
            self._served.clear()
            return
        level = min(self._served[node] for node, jobs in self._jobs.items() if jobs)
        for node in [node for node, jobs in self._jobs.items() if not jobs]:
            if self._served[node] <= level:
                del self._jobs[node], self._waiting[node], self._served[node]


def _bounded(seconds: float) -> float:
    return min(max(seconds, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)
