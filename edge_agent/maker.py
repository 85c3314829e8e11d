"""Pictures one after the other: who asked first is served first, and at most `queue` wait."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from edge_agent.device import Device, Order
from edge_agent.generate import Generation, Outcome, Progress, WithoutCloud
from edge_agent.pace import LEAST_CHANCE, Effort, Pace
from edge_agent.plan import Plan
from edge_agent.power import is_on_battery
from edge_agent.settings import GenerationSettings
from edge_agent.verifier import Verifier
from fleet.decoding.policies import PolicyName
from fleet.errors import CapacityError, InvalidInputError
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


class Report(Protocol):
    """Where a caller is told how far things are."""

    def queued(self, ahead: int) -> None:
        """So many pictures are made before this one."""
        ...

    def progress(self, progress: Progress) -> None:
        """The picture is being made."""
        ...


@dataclass(frozen=True, slots=True)
class Around:
    """What the maker needs of the rest of the agent."""

    keep: Callable[[Outcome], Awaitable[str]]  # spools the record; "" or what went wrong
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
        self._manifest = device.manifest
        self._calibration = _calibration(device.manifest, defaults)
        self._defaults = defaults
        self._verifier = verifier
        self._around = around
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._present: Generation | None = None
        self._paces: dict[str, Pace] = {}  # one a policy's name

    @property
    def settled(self) -> int:
        """Final tokens of the picture that is being made, or of the last one."""
        return self._present.picture.settled if self._present else 0

    @property
    def is_working(self) -> bool:
        """Whether a picture is being made right now."""
        return self._turn.locked()

    @property
    def waiting(self) -> int:
        """Pictures that wait for their turn."""
        return self._waiting

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
        async with self._place(report):
            waited = asyncio.get_running_loop().time() - arrived
            generation = Generation(
                GenerationId(new_id()),
                order,
                self._device,
                self._plan(max(SHORTEST_DEADLINE_S, deadline_s - waited)),
                self._pace(order.policy.name),
                wish.without_cloud or self._defaults.without_cloud,
                report.progress,
            )
            self._present = generation
            outcome = await generation.run(self._verifier)
            self.pictures += 1
        return outcome, await self._around.keep(outcome)

    @asynccontextmanager
    async def _place(self, report: Report) -> AsyncIterator[None]:
        """A place in the queue, then the turn itself; asyncio's lock serves who came first."""
        if self._turn.locked() and self._waiting >= self._defaults.queue:
            raise CapacityError(
                f"{self._waiting} pictures wait already: try again when some are done, or raise"
                " generation.queue"
            )
        if self._turn.locked():
            report.queued(self._waiting + 1)
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()

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
        return Order(
            caption=wish.caption,
            seed=seed,
            sampling=self._manifest.sampling,
            policy=PolicyName.parse(wish.policy or self._defaults.policy).policy(self._calibration),
            prefix_tokens=self._manifest.prefix_tokens if prefix is None else prefix,
            use_features=self._defaults.use_features,
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

    def _plan(self, deadline_s: float) -> Plan:
        defaults = self._defaults
        patience = defaults.start_patience_s
        outage = defaults.outage_patience_s - self._around.hub_absent_s()
        return Plan(
            deadline_s=deadline_s,
            window=defaults.window,
            in_flight=defaults.in_flight,
            chunk=defaults.chunk,
            least_chance=LEAST_CHANCE[self._effort()],
            # What has been gone for long is not waited for again at each picture.
            start_patience_s=max(0.0, patience - self._around.link_down_s()),
            outage_patience_s=max(min(patience, defaults.outage_patience_s), outage),
        )


def _calibration(manifest: Manifest, defaults: GenerationSettings) -> Manifest:
    """The bundle's calibration with the score and the threshold of the settings."""
    score, thresholds = defaults.score or manifest.score, dict(manifest.thresholds)
    if defaults.threshold is not None:
        thresholds[score] = defaults.threshold
    return manifest.model_copy(update={"score": score, "thresholds": thresholds})
