"""Running counts over a history: what a progress line and a report say."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from simulations.history.events import Event

ENDS = ("made", "refused", "interrupted", "unheard")


@dataclass(slots=True)
class Tally:
    """Counts and times of pictures; `add` is a listener of a history."""

    at_s: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    summed: Counter[str] = field(default_factory=Counter)  # over made pictures
    fallbacks: Counter[str] = field(default_factory=Counter)  # by reason
    took_s: list[float] = field(default_factory=list)  # from the wish to the picture
    made_at: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # in force

    def add(self, event: Event) -> None:
        """Takes one event."""
        self.at_s = event["at"]
        self.events[event["event"]] += 1
        match event["event"]:
            case "made":
                self._add_picture(event)
            case "fault" if event["state"] == "begins":
                self.faults.append(event["kind"])
            case "fault":
                self.faults.remove(event["kind"])
            case _:
                pass

    @property
    def made(self) -> int:
        """Pictures that are finished."""
        return self.events["made"]

    @property
    def under_way(self) -> int:
        """Pictures that somebody waits for."""
        return self.events["asked"] - sum(self.events[end] for end in ENDS)

    @property
    def cloud_share(self) -> float:
        """Forwards by tokens (docs/metrics.md); 0 where there is none."""
        return self.summed["forwards"] / max(self.summed["tokens"], 1)

    def latency_s(self, share: float, last: int | None = None) -> float:
        """The quantile of the seconds from a wish to its picture, of all or of the last ones."""
        times = self.took_s[-last:] if last else self.took_s
        return float(np.quantile(times, share)) if times else 0.0

    def _add_picture(self, event: Event) -> None:
        self.took_s.append(event["took_s"])
        self.made_at.append(event["at"])
        self.fallbacks[event["fallback"]] += 1
        for name in ("tokens", "local", "verified", "corrected", "unverified", "forwards"):
            self.summed[name] += event[name]
        for name in ("wasted", "round_trips", "bytes_up", "bytes_down"):
            self.summed[name] += event[name]
