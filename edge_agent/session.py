"""One picture's dealings with the cloud: open, send backlogs, take verdicts, open again, give up.

The picture stays right whatever happens here: a lost session costs time, never tokens.
"""

import asyncio
import random
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edge_agent.asking import Asking, Result
from edge_agent.device import Device, Order
from edge_agent.drafts import Backlog
from edge_agent.pace import Pace
from edge_agent.picture import Picture
from edge_agent.plan import Meter, Plan, Reason
from edge_agent.verifier import About, Verifier, verdict
from fleet.errors import ProtocolError, RequestTimeout, TransportError
from fleet.ids import GenerationId, RequestId, WorkerId, new_id
from fleet.logs import get_logger
from fleet.protocol.arrays import unpack_confidences, unpack_tokens
from fleet.protocol.messages import Busy, GenerationOpened, Refused, VerifyResponse

log = get_logger(__name__)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 3.0


class Session:
    """The cloud's side of one picture, driven by the loop in `generate.py`."""

    def __init__(  # noqa: PLR0913 - one picture in all its respects
        self,
        verifier: Verifier,
        generation: GenerationId,
        order: Order,
        picture: Picture,
        device: Device,
        plan: Plan,
        pace: Pace,
        *,
        wants_condition: bool = False,
    ) -> None:
        self.meter = Meter()
        self.condition: bytes | None = None  # what the hub told of the caption, if that was asked
        self._wants_condition = wants_condition
        self.reason: Reason = ""  # what stands between the picture and the cloud right now
        self.detail = ""
        self.was_opened = False
        self._verifier = verifier
        self._generation = generation
        self._order = order
        self._picture = picture
        self._device = device
        self._plan = plan
        self._pace = pace
        self._reach = 0  # undecided drafts behind which one more is made
        self._sent_at = 0.0
        self._asking = Asking(verifier, self.meter, pace)
        self._worker: WorkerId | None = None
        self._opening: RequestId | None = None
        self._had_link = False  # at any time since the picture began
        self._draining = False
        self._failures = 0
        self._hold_until = 0.0
        self._now = asyncio.get_running_loop().time
        self._started = self._heard = self._now()

    async def __aenter__(self) -> Self:
        await self._asking.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._asking.__aexit__(kind, error, trace)
        finally:
            await self._close()

    @property
    def has_news(self) -> bool:
        """Whether there is something to take; the drafting thread stops early then."""
        return self._asking.has_news

    # ── What the loop does with it ────────────────────────────────────────────────────────

    def push(self) -> None:
        """Sends whatever may be sent now."""
        self._had_link = self._had_link or self._verifier.is_connected
        if self._picture.alone or self._now() < self._hold_until:
            return
        if not self._verifier.is_connected:
            self.reason = "no_broker"
            self._asking.await_link()
        elif self._worker is None:
            self._open()
        elif self.is_due():
            self._verify(self._worker)

    def may_draft(self) -> bool:
        """Whether one more draft fits and is likely enough to stand."""
        picture = self._picture
        if not picture.may_draft(self._plan.window):
            return False
        return picture.alone or picture.undecided <= self._reach

    def is_due(self) -> bool:
        """Whether the drafts that were not sent yet go out now; see `pace.py`."""
        picture = self._picture
        if not picture.unsent or self._worker is None:  # as after most tokens
            return False
        now = self._now()
        if now < self._hold_until:
            return False
        if picture.in_flight >= (1 if self._draining else self._plan.in_flight):
            return False
        if not self.may_draft():
            return True
        if picture.in_flight:
            return now - self._sent_at >= self._pace.service_s.value
        return not self._pace.is_worth_holding(picture.undecided)

    def take(self) -> None:
        """Applies every answer that came."""
        if self._worker in self._asking.gone and not self._picture.alone:
            self._lose("timeout", f"worker {self._worker} has died")
        for request_id, answer in self._asking.take():
            if not self._picture.alone:
                self._take(request_id, answer)
        self._reach = self._pace.reach(self._plan.least_chance, self._plan.window)

    async def wait(self, give_up_at: float) -> None:
        """Returns when there is news, something to send again, or at `give_up_at`."""
        held = self._hold_until > self._now()
        await self._asking.wait(min(give_up_at, self._hold_until) if held else give_up_at)

    @property
    def patience_ends(self) -> float:
        """Loop time at which waiting for a silent cloud is over."""
        if not self._had_link:
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
        self._asking.cancel()
        self._picture.fall_back()

    # ── Sending ───────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        if self._opening is not None:
            return
        self._opening = RequestId(new_id())
        history = self._picture.history()
        features = self._features(history)
        about = self._about(self._opening, self._verifier.longest_repeat_s)
        wants = self._wants_condition and self.condition is None
        work = partial(
            self._verifier.open, about, self._order, history, features, wants_condition=wants
        )
        self._asking.ask(self._opening, work, "open")

    def _verify(self, worker: WorkerId) -> None:
        backlog = self._picture.backlog()
        if backlog is None:
            return
        self._draining = False
        self._sent_at = self._now()
        request_id = RequestId(new_id())
        self._picture.asked(request_id, backlog)
        features = self._features(backlog)
        repeat_s = self._pace.repeat_after_s(self._verifier.longest_repeat_s)
        about = self._about(request_id, repeat_s)
        work = partial(self._verifier.verify, worker, about, backlog, features)
        self._asking.ask(request_id, work, f"verify from {backlog.start}")

    def _about(self, request_id: RequestId, repeat_s: float) -> About:
        return About(request_id, self._generation, self._time_left(), repeat_s)

    def _features(self, backlog: Backlog) -> NDArray[np.int8]:
        """The interval features of a backlog's local tokens, where the cloud will use them."""
        wanted = backlog.features if self._order.use_features else backlog.features[:0]
        return self._device.quantise(wanted)

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
        self.condition = self.condition or answer.condition
        self._worker = answer.worker
        self._asking.gone.discard(answer.worker)  # it lives, perhaps again
        self.meter.cloud_version = answer.cloud_version
        self._answered(answer)

    def _judged(self, request_id: RequestId, answer: VerifyResponse) -> None:
        before = self._picture.tally
        try:
            self._picture.apply(request_id, verdict(answer, self._picture.vocab_size))
        except ProtocolError as error:
            self._lose("refused", str(error))
            return
        after = self._picture.tally
        judged, fell = after.verified - before.verified, after.corrected - before.corrected
        self._pace.judged(judged, judged - fell)
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
        self._asking.cancel()
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
