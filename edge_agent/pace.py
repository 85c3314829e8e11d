"""How far a device drafts ahead, when it asks the cloud, and when it asks again.

Measured while pictures are made: the share of judged drafts that stood, the round trip, the
hub's time for one request, the device's time for one draft. From these:

* A draft behind k undecided ones stands with chance acceptance^k. It is made while that chance
  is at least `least_chance`: what lies beyond would mostly be dropped.
* A request is held back while the next draft is likely to save it a second forward of the hub;
  further ones follow no faster than the hub answers them, so nothing queues there.
* A request without an answer goes out again after the mean round trip and four deviations
  (RFC 6298), not before `SHORTEST_REPEAT_S`.

Nothing here changes a picture (decision 0004): only its time and what is drafted in vain.
"""

from dataclasses import dataclass, field
from typing import Literal

Effort = Literal["full", "balanced", "saving"]

LEAST_CHANCE: dict[Effort, float] = {"full": 0.02, "balanced": 0.1, "saving": 0.5}
SHORTEST_REPEAT_S = 0.2

_PRIOR, _PRIOR_WEIGHT = 0.7, 8.0  # acceptance, until some drafts were judged


@dataclass(slots=True)
class Mean:
    """A mean over about the last `memory` values."""

    memory: float
    total: float = 0.0
    weight: float = 0.0
    value: float = field(init=False)  # the mean, 0 before the first value

    def __post_init__(self) -> None:
        self.value = self.total / self.weight if self.weight else 0.0

    def add(self, total: float, count: float = 1.0) -> None:
        """Adds `count` values that sum to `total`."""
        keep: float = (1 - 1 / self.memory) ** count
        new = self.memory * (1 - keep)  # what is left of their weights: 1, and less for the older
        self.total = self.total * keep + total / count * new
        self.weight = self.weight * keep + new
        self.value = self.total / self.weight


@dataclass(slots=True)
class Pace:
    """What was measured of one device, its link and its hub. Times in seconds."""

    acceptance: Mean = field(
        default_factory=lambda: Mean(64, _PRIOR * _PRIOR_WEIGHT, _PRIOR_WEIGHT)
    )
    unsure: Mean = field(default_factory=lambda: Mean(64))  # share of drafts that are uncertain
    draft_s: Mean = field(default_factory=lambda: Mean(64))
    service_s: Mean = field(default_factory=lambda: Mean(16))  # the hub's, for one request
    round_trip_s: Mean = field(default_factory=lambda: Mean(16))  # less queueing at the hub
    deviation_s: Mean = field(default_factory=lambda: Mean(16))

    # ── What is measured ──────────────────────────────────────────────────────────────────

    def drafted(self, count: int, uncertain: int, seconds: float) -> None:
        """Counts drafts, those of them that the cloud must judge, and their time."""
        if count:
            self.unsure.add(uncertain, count)
            self.draft_s.add(seconds, count)

    def judged(self, count: int, stood: int) -> None:
        """Counts drafts that the cloud judged, and those of them that stood."""
        if count:
            self.acceptance.add(stood, count)

    def answered(self, wait_s: float, queue_s: float, service_s: float) -> None:
        """Takes the time of one request that was sent once and answered."""
        trip_s = max(0.0, wait_s - queue_s)
        off_s = abs(trip_s - self.round_trip_s.value) if self.round_trip_s.weight else trip_s / 2
        self.round_trip_s.add(trip_s)
        self.deviation_s.add(off_s)
        self.service_s.add(service_s)

    # ── What follows ──────────────────────────────────────────────────────────────────────

    def chance(self, undecided: int) -> float:
        """The chance that a draft behind so many undecided ones stands."""
        return self.acceptance.value**undecided

    def reach(self, least_chance: float, most: int) -> int:
        """How many undecided drafts may be there when the next one is made; at most `most`."""
        reach, chance = 0, self.acceptance.value
        while reach < most and chance >= least_chance:
            reach += 1
            chance *= self.acceptance.value
        return reach

    def is_worth_holding(self, undecided: int) -> bool:
        """Whether one more uncertain draft in the same request saves more time than it takes."""
        wait_s = self.draft_s.value / max(self.unsure.value, 0.01)
        return self.chance(undecided) * self.service_s.value > wait_s

    def repeat_after_s(self, longest_s: float) -> float:
        """Seconds after which an unanswered request goes out again."""
        if not self.round_trip_s.weight:
            return longest_s
        usual_s = self.round_trip_s.value + 4 * self.deviation_s.value
        return min(longest_s, max(SHORTEST_REPEAT_S, usual_s))
