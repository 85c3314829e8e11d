"""An engine on a clock of the test's own, and devices that draft badly against it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from cloud_hub.engine.checks import Looked
from cloud_hub.engine.collect import Pace
from cloud_hub.engine.forward import Outcome
from cloud_hub.engine.loop import Engine
from cloud_hub.engine.requests import (
    Answer,
    Denied,
    Full,
    Judged,
    Opened,
    Reason,
    Request,
    Run,
    SessionKey,
)
from cloud_hub.engine.runner import Runner
from cloud_hub.engine.scheduler import Limits, Scheduler
from cloud_hub.engine.sessions import Session, Sessions
from fleet.ids import GenerationId, NodeId
from tests.unit.cloud_hub.toy import (
    POSITIONS,
    VOCAB,
    ToyRunner,
    backlog,
    cloud_only,
    join,
    opening,
    run_of,
    toy_draw,
)

CAPTION = (3, 1, 4)
LIMITS = Limits(
    jobs=64, node_jobs=32, batch_tokens=64, batch_spans=16, quantum=8, aging_s=2.0, node_share=0.05
)


@dataclass
class Bench:
    """An engine on a toy, with a clock that only the test moves.

    With `forward_s` the clock is the event loop's, and a forward takes that long on it and
    `token_s` more for each token: for `run_in_virtual_time`.
    """

    slots: int = 4
    node_slots: int | None = None
    keep_s: float = 0.0
    limits: Limits = LIMITS
    chunk: int = 4
    now: float = 100.0
    forward_s: float | None = None
    token_s: float = 0.0
    runner: Runner | None = None  # the toy, unless another is given
    late: list[Answer] = field(default_factory=list)
    looked: list[tuple[Session, Looked]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.toy = ToyRunner(slots=self.slots)
        self.one = asyncio.Lock()
        runner = self.runner or self.toy
        self.sessions = Sessions(
            slots=runner.slots,
            node_slots=self.node_slots or runner.slots,
            positions=POSITIONS,
            keep_s=self.keep_s,
            idle_s=60,
        )
        self.engine = Engine(
            runner=runner,
            sessions=self.sessions,
            scheduler=Scheduler(self.limits),
            pace=Pace(chunk=self.chunk, max_deadline_s=30),
            clock=self.clock,
            offload=asyncio.to_thread if self.forward_s is None else self._offload,
        )
        self.engine.watch = lambda session, looked: self.looked.append((session, looked))

    def clock(self) -> float:
        """Seconds."""
        return self.now if self.forward_s is None else asyncio.get_running_loop().time()

    async def _offload(self, compute: Callable[[], Outcome]) -> Outcome:
        async with self.one:  # forward at a time
            outcome = compute()
            tokens = sum(span.tokens for span in self.toy.batches[-1])
            forward_s = (self.forward_s or 0.0) + tokens * self.token_s
            await asyncio.sleep(forward_s)
        return replace(outcome, forward_s=forward_s)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Bench"]:
        """The engine at work until the context ends."""
        task = asyncio.create_task(self.engine.run(), name="engine")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def ask(self, request: Request) -> Answer:
        """The engine's answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def reply(value: Answer) -> None:
            if not answer.cancelled():  # the test gave up
                answer.set_result(value)

        immediate = self.engine.submit(request, reply)
        if immediate is not None:
            return immediate
        if self.forward_s is not None:
            return await answer  # virtual time finds what is never answered by itself
        async with asyncio.timeout(15):
            return await answer

    async def ask_all(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers, asked for at once."""
        return list(await asyncio.gather(*(self.ask(request) for request in requests)))


class BusyError(Exception):
    """The hub had no room."""

    def __init__(self, full: Full) -> None:
        super().__init__("come back later")
        self.retry_after_s = full.retry_after_s


def judged(answer: Answer) -> Judged:
    assert isinstance(answer, Judged), answer
    return answer


def opened(answer: Answer) -> Opened:
    if isinstance(answer, Full):
        raise BusyError(answer)
    assert isinstance(answer, Opened), answer
    return answer


def key(node: str = "n1", generation: str = "g1") -> SessionKey:
    return SessionKey(NodeId(node), GenerationId(generation))


@dataclass
class ToyDevice:
    """Drafts badly, accepts some drafts by itself and asks about the rest."""

    bench: Bench
    node: str
    seed: int
    rng: np.random.Generator
    local_share: float
    prefix_tokens: int = 3
    window: int = 5
    run: Run = field(default_factory=lambda: run_of([]))
    branch: int = 0

    async def open(self) -> None:
        """Opens, or reopens with all tokens so far."""
        request = opening(
            node=self.node,
            caption=CAPTION,
            seed=self.seed,
            prefix_tokens=self.prefix_tokens,
            branch=self.branch,
            history=self.run,
        )
        answer = opened(await self.bench.ask(request))
        self.run = join(self.run, run_of(answer.tokens))

    def draft(self, position: int) -> tuple[int, bool]:
        """Token and whether it is local: functions of seed and position only."""
        rng = np.random.default_rng([self.seed, position])
        return int(rng.integers(VOCAB)), bool(rng.random() < self.local_share)

    async def picture(self) -> Run:
        """The finished picture."""
        if not len(self.run):
            await self.open()
        while len(self.run) < POSITIONS:
            await self.advance()
        return self.run

    async def advance(self) -> None:
        """Sends one backlog of random length and applies its verdict."""
        start = len(self.run)
        count = int(self.rng.integers(1, min(self.window, POSITIONS - start) + 1))
        drafts = [self.draft(start + index) for index in range(count)]
        part = run_of([token for token, _ in drafts], [local for _, local in drafts])
        request = backlog(start, part, ~part.local, node=self.node, branch=self.branch)
        answer = await self.bench.ask(request)
        if answer == Denied(Reason.UNKNOWN_SESSION):
            await self.open()
            return
        if isinstance(answer, Full):
            raise BusyError(answer)
        verdict = judged(answer)
        self.run = join(self.run, _first(part, verdict.accepted))
        if verdict.accepted < count:
            self.run = join(self.run, run_of([verdict.next_token]))
            self.branch += 1
        assert self.branch == verdict.branch


def values(run: Run) -> list[int]:
    """The tokens as a list."""
    return [int(token) for token in run.tokens]


def _first(run: Run, count: int) -> Run:
    return Run(run.tokens[:count], run.local[:count], run.features[:count])


def expected_picture(device: ToyDevice) -> list[int]:
    """What the laws say: local drafts stand, everything else is the cloud's draw."""
    run = run_of(cloud_only(CAPTION, device.seed, device.prefix_tokens))
    while len(run) < POSITIONS:
        token, local = device.draft(len(run))
        if not local:
            token = toy_draw(CAPTION, run, device.seed)
        run = join(run, run_of([token], [local]))
    return values(run)


def device(bench: Bench, index: int, local_share: float = 0.0, rng_seed: int = 0) -> ToyDevice:
    return ToyDevice(
        bench, f"n{index}", 1000 + index, np.random.default_rng(rng_seed + index), local_share
    )
