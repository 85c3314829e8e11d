"""Which waiting jobs run in the next forward: earliest deadline first, a fair share for each node.

Holds no tensors and reads no clock. The queue is bounded: beyond the bound `submit` refuses
with the time after which to come back, and nothing that waits is dropped for what comes later.
"""

import heapq
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fleet.errors import CapacityError
from fleet.ids import NodeId

W = TypeVar("W")

_RATE_MEMORY = 0.9  # weight of the past in the running rate
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.05, 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the queue and of one forward."""

    jobs: int  # waiting jobs of all nodes
    node_jobs: int  # waiting jobs of one node
    batch_tokens: int  # tokens of one forward
    batch_spans: int  # spans of one forward
    quantum: int  # tokens by which a node may lead the least served one that waits

    def __post_init__(self) -> None:
        if min(self.jobs, self.node_jobs, self.batch_tokens, self.batch_spans, self.quantum) < 1:
            raise ValueError("a limit of the scheduler is a positive number")


@dataclass(frozen=True, slots=True)
class Job(Generic[W]):
    """One span to run. Jobs of one session run in their order, one a batch."""

    session: Hashable
    node: NodeId
    deadline: float
    tokens: int
    work: W


class QueueFullError(CapacityError):
    """The queue, or the node's part of it, is full."""

    def __init__(self, whose: str, retry_after_s: float) -> None:
        super().__init__(f"the {whose} queue is full: come back after {retry_after_s:.2f} s")
        self.retry_after_s = retry_after_s


class Scheduler(Generic[W]):
    """A bounded queue of jobs that yields batches.

    Fairness is deficit round robin with deadlines inside a round: a node is eligible while it
    leads the least served waiting node by at most `quantum` tokens, and among the eligible the
    earliest deadline goes first. So a node with many jobs waits for itself only, and nothing
    starves: in the end its deadline is the earliest, or its node the least served.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queues: dict[Hashable, deque[tuple[int, Job[W]]]] = {}
        self._jobs: Counter[NodeId] = Counter()  # waiting jobs by node
        self._served: dict[NodeId, float] = {}  # tokens; compared among waiting nodes only
        self._order = 0
        self._rate = 0.0  # tokens per second
        self._tokens = 0

    def __len__(self) -> int:
        return self._jobs.total()

    @property
    def waiting_tokens(self) -> int:
        """Tokens of all waiting jobs."""
        return self._tokens

    @property
    def retry_after_s(self) -> float:
        """When what waits now will have run, at the running rate."""
        wait = self._tokens / self._rate if self._rate else 1.0
        return min(max(wait, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)

    def submit(self, job: Job[W]) -> None:
        """Queues a job behind those of its session.

        Raises:
            QueueFullError: All jobs, or the node's, are as many as may wait.
        """
        if len(self) >= self._limits.jobs:
            raise QueueFullError("hub's", self.retry_after_s)
        if self._jobs[job.node] >= self._limits.node_jobs:
            raise QueueFullError("node's", self.retry_after_s)
        self._add(job).append((self._order, job))

    def resume(self, job: Job[W]) -> None:
        """Queues the next step of admitted work: never refused, first of its session."""
        self._add(job).appendleft((self._order, job))

    def cancel(self, session: Hashable) -> list[W]:
        """Removes a session's waiting jobs; returns their work."""
        removed = [job for _, job in self._queues.pop(session, ())]
        for job in removed:
            self._forget(job)
        return [job.work for job in removed]

    def observe(self, tokens: int, seconds: float) -> None:
        """Tells how long a forward of so many tokens took."""
        rate = tokens / max(seconds, 1e-6)
        past = _RATE_MEMORY if self._rate else 0.0
        self._rate = past * self._rate + (1 - past) * rate

    def next_batch(self) -> list[Job[W]]:
        """Removes and returns the jobs of the next forward; at least one if any waits."""
        heads = self._heads()
        waiting = [(self._served[node], node) for node in heads]
        heapq.heapify(waiting)
        eligible: list[tuple[float, int, Hashable, NodeId]] = []
        batch: list[Job[W]] = []
        tokens, level = 0, 0.0
        while (waiting or eligible) and len(batch) < self._limits.batch_spans:
            if not eligible:
                level = waiting[0][0]
            while waiting and waiting[0][0] <= level + self._limits.quantum:
                node = heapq.heappop(waiting)[1]
                heapq.heappush(eligible, (*heapq.heappop(heads[node]), node))
            _, _, session, node = heapq.heappop(eligible)
            needed = self._queues[session][0][1].tokens
            if batch and tokens + needed > self._limits.batch_tokens:
                break
            tokens += needed
            batch.append(self._take(session))
            if heads[node]:
                heapq.heappush(waiting, (self._served[node], node))
        self._forget_idle_nodes()
        return batch

    def _heads(self) -> dict[NodeId, list[tuple[float, int, Hashable]]]:
        """By node, a heap of the first jobs of its sessions: (deadline, order, session)."""
        heads: dict[NodeId, list[tuple[float, int, Hashable]]] = {}
        for session, queue in self._queues.items():
            order, job = queue[0]
            heapq.heappush(heads.setdefault(job.node, []), (job.deadline, order, session))
        return heads

    def _add(self, job: Job[W]) -> deque[tuple[int, Job[W]]]:
        if not self._jobs[job.node]:
            # A node that comes back does not claim the time in which it asked for nothing.
            served = [self._served[node] for node, jobs in self._jobs.items() if jobs]
            level = min(served, default=0.0)
            self._served[job.node] = max(level, self._served.get(job.node, level))
        self._jobs[job.node] += 1
        self._tokens += job.tokens
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
        self._tokens -= job.tokens

    def _forget_idle_nodes(self) -> None:
        """Drops nodes that wait for nothing and lead nobody who waits."""
        waiting = [self._served[node] for node, jobs in self._jobs.items() if jobs]
        level = min(waiting, default=float("inf"))
        for node in [node for node, jobs in self._jobs.items() if not jobs]:
            if self._served[node] <= level:
                del self._jobs[node], self._served[node]
