"""A picture from a caption: draft, keep or ask, go on drafting, roll back where the cloud differs.

The picture depends on models, caption, seed, sampling, policy, prefix length and use of
features only (arXiv:2603.25463 with drafter-invariant verification by shared Gumbel noise),
as long as the cloud answers before the deadline.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Device, Drafter, Order
from edge_agent.drafts import Known, Tally
from edge_agent.pace import Pace
from edge_agent.picture import Picture
from edge_agent.plan import Meter, Plan, Reason
from edge_agent.session import Session
from edge_agent.settings import WithoutCloud
from edge_agent.verifier import Verifier
from fleet.errors import (
    CapacityError,
    FleetError,
    ProtocolError,
    RequestTimeout,
    TransportError,
)
from fleet.ids import GenerationId

FIRST_STEP_S = 0.002  # guess of a device step, until some are measured
RESERVE_S = 0.3  # for decoding the image and answering
SAFETY = 1.5
NO_IMAGE = np.zeros((0, 0, 3), np.uint8)
GREY = 230
PREVIEW_S = 0.3  # between two previews: one costs some twenty device steps
REPORT_S = 0.05  # between two reports of progress


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a picture is."""

    settled: int
    tokens: int
    tally: Tally
    round_trips: int
    rollbacks: int
    trouble: Reason


@dataclass(frozen=True, slots=True)
class Preview:
    """A picture that is not finished: its first `rows` rows of pixels are made of final tokens.

    The lowest of them may still change a little, since the decoder looks at neighbours.
    """

    image: NDArray[np.uint8]  # [side, side, 3], grey below the rows
    rows: int


@dataclass(slots=True)
class Timing:
    """Where a picture's time went, in seconds."""

    duration_s: float = 0.0
    device_s: float = 0.0
    wait_s: float = 0.0
    steps: int = 0

    def remaining(self, steps: int) -> float:
        """Time to draft that many tokens without the cloud, and to finish."""
        mean = self.device_s / self.steps if self.steps >= 8 else FIRST_STEP_S
        return steps * mean * SAFETY + RESERVE_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished picture and how it came about."""

    generation: GenerationId
    order: Order
    image: NDArray[np.uint8]  # [side, side, 3]
    picture: Picture
    meter: Meter
    timing: Timing
    fallback: Reason
    detail: str
    without_cloud: WithoutCloud


@dataclass(slots=True)
class _Desk:
    """The device model on one picture: which cache rows hold the picture's present tokens."""

    picture: Picture
    drafter: Drafter
    timing: Timing
    pace: Pace
    rows: int = 0

    def chunk(self, plan: Plan, session: Session | None) -> None:
        """Drafts until there is something to send, news, or no room.

        Runs in a thread, so that the link is served meanwhile: onnxruntime lets go of the
        interpreter, and handing over costs 0.05 ms of a chunk's 8 ms (measured).
        """
        begun, steps, uncertain = time.perf_counter(), self.timing.steps, 0
        for _ in range(plan.chunk):
            self.catch_up()
            uncertain += self._draft()
            if self.picture.length == self.picture.size:
                break
            if session and (session.has_news or session.is_due() or not session.may_draft()):
                break
        seconds = time.perf_counter() - begun
        self.timing.device_s += seconds
        self.pace.drafted(self.timing.steps - steps, uncertain, seconds)

    def catch_up(self) -> None:
        """Fills the cache rows of tokens that were not drafted here."""
        if self.rows == self.picture.length:
            return
        self.rows = min(self.rows, self.picture.length)
        for position in range(self.rows, self.picture.length):
            draft = self.drafter.step(position, self._previous(position))
            self.picture.fill(position, draft)
            self.timing.steps += 1
        self.rows = self.picture.length

    def _draft(self) -> bool:
        position = self.picture.length
        draft = self.drafter.step(position, self._previous(position))
        self.picture.draft(draft)
        self.rows = position + 1
        self.timing.steps += 1
        return draft.uncertain

    def _previous(self, position: int) -> int:
        return self.picture.at.token(position - 1) if position else -1


@dataclass(slots=True)
class Generation:
    """One picture on its way; `run` makes it."""

    generation: GenerationId
    order: Order
    device: Device
    plan: Plan
    pace: Pace
    without_cloud: WithoutCloud
    report: Callable[[Progress], None]
    show: Callable[[Preview], None] | None = None  # None: nobody looks, nothing is decoded
    picture: Picture = field(init=False)
    timing: Timing = field(init=False, default_factory=Timing)
    meter: Meter = field(init=False, default_factory=Meter)
    fallback: Reason = field(init=False, default="")
    detail: str = field(init=False, default="")
    _is_again: bool = field(init=False, default=False)
    _next_report: float = field(init=False, default=0.0)
    _next_preview: float = field(init=False, default=0.0)
    _shown_rows: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.picture = Picture(self.device.size, self.device.vocab_size)

    def begin_with(self, known: Known) -> None:
        """Makes a picture again whose first tokens are final; call it before `run`."""
        self.picture.restore(known)
        self._is_again = bool(len(known.tokens))

    async def run(self, verifier: Verifier | None) -> Outcome:
        """Makes the picture; without a verifier the device works alone.

        Raises:
            InvalidInputError: The models cannot read the caption.
            TransportError: The cloud cannot help in time, and the policy is to fail then.
            CapacityError: The hub is too busy, and the policy is to fail then.
        """
        begun = time.perf_counter()
        self.device.check(self.order.caption)
        if verifier is None or self.order.policy.name == "device_only":
            self.picture.fall_back()
            self.fallback = "" if self.order.policy.name == "device_only" else "no_broker"
            desk = await self._begin()
            while not self.picture.is_complete:
                await self._draft(desk, None)
        else:
            await self._run_with_cloud(verifier)
        image = await asyncio.to_thread(self.device.decode, self.picture.tokens)
        self.timing.duration_s = time.perf_counter() - begun
        return self.outcome(image)

    def outcome(self, image: NDArray[np.uint8] = NO_IMAGE) -> Outcome:
        """The picture as it stands."""
        return Outcome(
            self.generation,
            self.order,
            image,
            self.picture,
            self.meter,
            self.timing,
            self.fallback,
            self.detail,
            self.without_cloud,
        )

    async def _run_with_cloud(self, verifier: Verifier) -> None:
        deadline = asyncio.get_running_loop().time() + self.plan.deadline_s
        wants = await asyncio.to_thread(self.device.wants, self.order.caption)
        session = Session(
            verifier,
            self.generation,
            self.order,
            self.picture,
            self.device,
            self.plan,
            self.pace,
            wants_condition=wants,
        )
        self.meter = session.meter
        async with session:
            if not self._is_again:
                session.push()  # the hub draws the prefix while the device prepares
            problem = await self._be_told(session, deadline) if wants else None
            if problem is None:
                await self._draw(session, deadline)
        if problem is not None:
            raise problem
        if self._has_failed:
            raise _refusal(self.fallback, self.detail)

    async def _draw(self, session: Session, deadline: float) -> None:
        desk = await self._begin()
        while not self.picture.is_complete and not self._has_failed:
            session.take()
            session.push()
            await self._advance(session, desk, deadline)
            self._tell(session)
            await self._preview()

    async def _be_told(self, session: Session, deadline: float) -> FleetError | None:
        """Waits for what the hub says of the caption; why it says nothing, or nothing of use."""
        begun, loop = time.perf_counter(), asyncio.get_running_loop()
        while True:
            session.take()
            session.push()
            if (told := session.condition) is not None:
                break
            give_up_at = min(session.patience_ends, deadline - RESERVE_S)
            if session.is_refused or loop.time() >= give_up_at:
                self._give_up(session)
                return _refusal(self.fallback, self.detail)
            await session.wait(give_up_at)
        self.timing.wait_s += time.perf_counter() - begun
        try:
            await asyncio.to_thread(self.device.tell, self.order.caption, told)
        except ProtocolError as error:
            return TransportError(f"what the hub told of the caption is of no use: {error}")
        return None

    @property
    def _has_failed(self) -> bool:
        return bool(self.fallback) and self.without_cloud == "fail"

    async def _advance(self, session: Session, desk: _Desk, deadline: float) -> None:
        """Drafts if there is room, else waits for the cloud, or gives it up."""
        give_up_at = min(
            session.patience_ends,
            deadline - self.timing.remaining(self.picture.size - self.picture.settled),
        )
        late = asyncio.get_running_loop().time() >= give_up_at
        if not self.picture.alone and not self.picture.is_complete and (late or session.is_refused):
            self._give_up(session)
        if self._has_failed:
            return
        may_begin = session.was_opened or self.picture.alone
        if may_begin and session.may_draft():
            await self._draft(desk, session)
        elif not self.picture.is_complete:
            begun = time.perf_counter()
            await session.wait(give_up_at)
            self.timing.wait_s += time.perf_counter() - begun

    def _give_up(self, session: Session) -> None:
        session.abandon()
        self.fallback, self.detail = session.reason, session.detail

    async def _begin(self) -> _Desk:
        begun = time.perf_counter()
        drafter = await asyncio.to_thread(self.device.begin, self.order)
        desk = _Desk(self.picture, drafter, self.timing, self.pace)
        await asyncio.to_thread(desk.catch_up)
        self.timing.device_s += time.perf_counter() - begun
        return desk

    async def _draft(self, desk: _Desk, session: Session | None) -> None:
        await asyncio.to_thread(desk.chunk, self.plan, session)
        if session is None:
            self._tell(None)
            await self._preview()

    async def _preview(self) -> None:
        """Decodes what there is, when a row of tokens more is final, and not too often."""
        if self.show is None:
            return
        now, grid = time.monotonic(), self.device.manifest.grid
        rows = self.picture.settled // grid
        if now < self._next_preview or rows <= self._shown_rows:
            return
        # What is missing looks like what came last, so that the edge of the rows is calm.
        tokens, settled = self.picture.tokens.copy(), self.picture.settled
        tokens[settled:] = tokens[settled - 1]
        image = (await asyncio.to_thread(self.device.decode, tokens)).copy()
        pixels = rows * image.shape[0] // grid
        image[pixels:] = GREY
        self._shown_rows, self._next_preview = rows, time.monotonic() + PREVIEW_S
        self.show(Preview(image, pixels))

    def _tell(self, session: Session | None) -> None:
        """Reports now and then, and at the end: a report costs more than a device step."""
        now = time.monotonic()
        if now < self._next_report and not self.picture.is_complete:
            return
        self._next_report = now + REPORT_S
        self.report(
            Progress(
                settled=self.picture.settled,
                tokens=self.picture.size,
                tally=self.picture.tally,
                round_trips=self.meter.round_trips,
                rollbacks=self.picture.rollbacks,
                trouble=session.reason if session else self.fallback,
            )
        )


def _refusal(reason: Reason, detail: str) -> FleetError:
    """The error of a caller who wants no picture without the cloud."""
    match reason:
        case "no_broker":
            return TransportError(
                "no broker answered: start the hub, or set [broker] host and port"
            )
        case "busy":
            return CapacityError("the hub stayed busy until the deadline: try again later")
        case "refused":
            return TransportError(f"the hub refuses this picture: {detail}")
        case _:
            return RequestTimeout(f"the cloud did not answer before the deadline: {detail}")
