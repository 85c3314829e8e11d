"""Pictures one after the other: callers take turns, and at most `queue` pictures wait."""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from edge_agent.device import Device, Order
from edge_agent.generate import Generation, Outcome, Preview, Progress
from edge_agent.pace import LEAST_CHANCE, Effort, Pace
from edge_agent.plan import Plan, Reason
from edge_agent.power import is_on_battery
from edge_agent.settings import GenerationSettings, WithoutCloud
from edge_agent.shelf import Unfinished
from edge_agent.turns import Turns
from edge_agent.verifier import Verifier
from fleet.decoding.policies import PolicyName
from fleet.decoding.verify import Rule
from fleet.errors import CapacityError, InvalidInputError, TransportError
from fleet.ids import GenerationId, new_id
from fleet.models.bundle import Manifest

MAX_CAPTION_CHARACTERS = 512  # what the protocol carries
SEED_BITS = 63
PACES_KEPT = 16
SHORTEST_DEADLINE_S = 0.5  # what is left to a picture that waited its deadline away


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller may say about a picture; None takes the agent's setting."""

    caption: str
    seed: int | None = None
    policy: str | None = None
    deadline_s: float | None = None
    without_cloud: WithoutCloud | None = None
    caller: str = ""  # callers take turns
    previews: bool = False  # whether the caller looks at the picture while it is made


class Report(Protocol):
    """Where a caller is told how far things are."""

    def queued(self, ahead: int) -> None:
        """So many pictures are made before this one."""
        ...

    def progress(self, progress: Progress) -> None:
        """The picture is being made."""
        ...

    def preview(self, preview: Preview) -> None:
        """The picture so far, if the wish was for previews."""
        ...


@dataclass(frozen=True, slots=True)
class Around:
    """What the maker needs of the rest of the agent."""

    keep: Callable[[Outcome, str], Awaitable[str]]
    """Spools the record of a picture, or of the one that corrects another; "" or what is wrong."""
    link_down_s: Callable[[], float]  # for how long there has been no broker
    hub_absent_s: Callable[[], float]  # for how long there has been no sign of a hub


class Maker:
    """The device model's one user."""

    def __init__(
        self,
        device: Device,
        defaults: GenerationSettings,
        verifier: Verifier | None,
        around: Around,
    ) -> None:
        self.pictures = 0
        self._device = device
        self._calibration = _calibration(device.manifest, defaults)
        self._defaults = defaults
        self._verifier = verifier
        self._around = around
        self._turns = Turns(defaults.queue)
        self._present: Generation | None = None
        self._paces: dict[str, Pace] = {}  # one a policy's name

    def configure(self, defaults: GenerationSettings) -> None:
        """Other defaults, from the next picture on."""
        self._defaults = defaults
        self._calibration = _calibration(self._device.manifest, defaults)

    @property
    def settled(self) -> int:
        """Final tokens of the picture that is being made, or of the last one."""
        return self._present.picture.settled if self._present else 0

    @property
    def is_working(self) -> bool:
        """Whether a picture is being made right now."""
        return self._turns.is_taken

    @property
    def waiting(self) -> int:
        """Pictures that wait for their turn."""
        return self._turns.waiting

    async def replace(self, act: Callable[[], None]) -> None:
        """Calls `act` between two pictures, and goes on with what the device is then.

        Raises:
            CapacityError: Too many pictures wait.
        """
        async with self._turns.turn("update"):
            act()
            self._paces.clear()  # another model, other odds
            self.configure(self._defaults)

    async def make(self, wish: Wish, report: Report) -> tuple[Outcome, str]:
        """The picture, and "" or a sentence on what went wrong with its record.

        Raises:
            InvalidInputError: Something in the wish cannot be used.
            CapacityError: Too many pictures wait already, or the hub is too busy.
            TransportError: The cloud cannot help, and the caller wants no picture without it.
        """
        order = self._order(wish)
        deadline_s = wish.deadline_s or self._defaults.deadline_s
        arrived = asyncio.get_running_loop().time()
        async with self._turns.turn(wish.caller, report.queued):
            waited = asyncio.get_running_loop().time() - arrived
            generation = self._generation(
                order,
                max(SHORTEST_DEADLINE_S, deadline_s - waited),
                wish.without_cloud or self._defaults.without_cloud,
                report.progress,
            )
            generation.show = report.preview if wish.previews else None
            try:
                outcome = await generation.run(self._verifier)
            except (asyncio.CancelledError, TransportError, CapacityError) as error:
                generation.fallback = generation.fallback or _reason(error)
                await self._around.keep(generation.outcome(), "")
                raise
            self.pictures += 1
        return outcome, await self._around.keep(outcome, "")

    async def remake(self, unfinished: Unfinished) -> tuple[Outcome, str]:
        """The same picture with the cloud, from its final tokens on; as `make`.

        Raises:
            CapacityError: The hub is too busy.
            TransportError: The cloud cannot help.
        """
        self._device.check(unfinished.order.caption)
        async with self._turns.turn("repair"):
            generation = self._generation(
                unfinished.order, self._defaults.deadline_s, "fail", lambda _: None
            )
            generation.begin_with(unfinished.known)
            outcome = await generation.run(self._verifier)
        return outcome, await self._around.keep(outcome, unfinished.generation_id)

    def _generation(
        self,
        order: Order,
        deadline_s: float,
        without_cloud: WithoutCloud,
        report: Callable[[Progress], None],
    ) -> Generation:
        self._present = Generation(
            GenerationId(new_id()),
            order,
            self._device,
            self._plan(deadline_s, without_cloud),
            self._pace(order.policy.name),
            without_cloud,
            report,
        )
        return self._present

    def _order(self, wish: Wish) -> Order:
        if len(wish.caption) > MAX_CAPTION_CHARACTERS:
            raise InvalidInputError(
                f"the caption has {len(wish.caption)} characters, {MAX_CAPTION_CHARACTERS} is the"
                " limit"
            )
        self._device.check(wish.caption)
        seed = secrets.randbits(SEED_BITS) if wish.seed is None else wish.seed
        if not 0 <= seed < 1 << SEED_BITS:
            raise InvalidInputError(f"seed {seed} is not between 0 and 2^{SEED_BITS} - 1")
        prefix = self._defaults.prefix_tokens
        policy = PolicyName.parse(wish.policy or self._defaults.policy).policy(self._calibration)
        return Order(
            caption=wish.caption,
            seed=seed,
            sampling=self._device.manifest.sampling,
            policy=replace(policy, firm=self._defaults.budget is not None),
            prefix_tokens=self._device.manifest.prefix_tokens if prefix is None else prefix,
            use_features=self._defaults.use_features and self._device.manifest.has_features,
            rule=Rule(self._defaults.rule, self._defaults.relaxation),
        )

    def _pace(self, policy: str) -> Pace:
        """What pictures under this policy have taught; of the policies used last."""
        pace = self._paces.pop(policy, None) or Pace()
        self._paces[policy] = pace
        if len(self._paces) > PACES_KEPT:
            del self._paces[next(iter(self._paces))]
        return pace

    def _effort(self) -> Effort:
        if self._defaults.effort == "auto":
            return "saving" if is_on_battery() else "balanced"
        return self._defaults.effort

    def _plan(self, deadline_s: float, without_cloud: WithoutCloud) -> Plan:
        defaults = self._defaults
        start_s, outage_s = self._patience(without_cloud, deadline_s)
        return Plan(
            deadline_s=deadline_s,
            window=defaults.window,
            in_flight=defaults.in_flight,
            chunk=defaults.chunk,
            least_chance=LEAST_CHANCE[self._effort()],
            start_patience_s=start_s,
            outage_patience_s=outage_s,
        )

    def _patience(self, without_cloud: WithoutCloud, deadline_s: float) -> tuple[float, float]:
        """Seconds to wait for a broker at the start, and for the cloud in the middle."""
        if without_cloud == "wait":
            return deadline_s, deadline_s
        start_s, outage_s = self._defaults.start_patience_s, self._defaults.outage_patience_s
        if without_cloud == "repair":
            outage_s = min(start_s, outage_s)
        # What has been gone for long is not waited for again at each picture.
        left_s = outage_s - self._around.hub_absent_s()
        return max(0.0, start_s - self._around.link_down_s()), max(min(start_s, outage_s), left_s)


def _reason(error: BaseException) -> Reason:
    """Why there is no picture, where the generation has not said it."""
    match error:
        case asyncio.CancelledError():
            return "cancelled"
        case CapacityError():
            return "busy"
        case _:
            return "timeout"


def _calibration(manifest: Manifest, defaults: GenerationSettings) -> Manifest:
    """The bundle's calibration with the score, the threshold and the budget of the settings."""
    score, thresholds = defaults.score or manifest.score, dict(manifest.thresholds)
    if defaults.threshold is not None:
        thresholds[score] = defaults.threshold
    changed: dict[str, Any] = {"score": score, "thresholds": thresholds}
    if defaults.budget is None:
        return manifest.model_copy(update=changed)
    if defaults.prefix_tokens is not None:
        changed["prefix_tokens"] = defaults.prefix_tokens
    limited = manifest.model_copy(update={**changed, "budget": defaults.budget, "dynamic": True})
    if limited.call_share == 0:  # the prefix takes all of it
        thresholds[score] = math.inf
    return limited
