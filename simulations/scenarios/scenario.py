"""A scenario: who asks for what, over which networks, from which hub, and what goes wrong.

Frozen values; `files.py` reads them from TOML, `population.py` draws a fleet from one.
"""

from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from cloud_hub.settings import EngineSettings
from edge_agent.settings import GenerationSettings
from fleet.settings import Section
from fleet.transport.link import PROFILES, LinkProfile
from simulations.scenarios.faults import Fault, PoisonUpdates

MOST_DEVICES = 100_000
MOST_SECONDS = 7 * 86_400.0

Share = Annotated[float, Field(gt=0, le=1, description="part of the devices")]


class Kind(Section):
    """Devices of one make."""

    name: str
    share: Share = 1.0
    speed: float = Field(default=1.0, ge=0.01, le=100, description="of the profile's device")


class Link(Section):
    """A network; what is not given is that of the known network of its name."""

    name: str
    share: Share = 1.0
    round_trip_ms: float | None = Field(default=None, ge=0, le=60_000)
    jitter_ms: float | None = Field(default=None, ge=0, le=60_000)
    up_mbps: float | None = Field(default=None, gt=0)
    down_mbps: float | None = Field(default=None, gt=0)
    loss: float | None = Field(default=None, ge=0, le=0.5)
    outages_per_hour: float = Field(default=0.0, ge=0, le=3600)
    outage_s: float = Field(default=10.0, gt=0, description="mean length of an outage")

    @model_validator(mode="after")
    def _must_be_whole(self) -> Self:
        figures = (self.round_trip_ms, self.jitter_ms, self.up_mbps, self.down_mbps, self.loss)
        if self.name not in PROFILES and None in figures:
            raise ValueError(
                f"{self.name!r} is none of {', '.join(PROFILES)}: give all of round_trip_ms,"
                " jitter_ms, up_mbps, down_mbps and loss"
            )
        return self

    @property
    def profile(self) -> LinkProfile:
        """What it does to payloads; its outages are drawn for each device."""
        known = PROFILES.get(self.name)

        def figure(given: float | None, name: str, unit: float = 1.0) -> float:
            return given * unit if given is not None else float(getattr(known, name))

        return LinkProfile(
            self.name,
            up_mbps=figure(self.up_mbps, "up_mbps"),
            down_mbps=figure(self.down_mbps, "down_mbps"),
            round_trip_s=figure(self.round_trip_ms, "round_trip_s", 1e-3),
            jitter_s=figure(self.jitter_ms, "jitter_s", 1e-3),
            loss=figure(self.loss, "loss"),
        )


class Captions(Section):
    """What is asked for; each device has a taste of its own among styles and themes.

    Tastes are drawn from a symmetric Dirichlet law, as is usual for federated data: a small
    `concentration` gives each device few styles and themes, a large one gives all the same.
    """

    styles: tuple[str, ...] = Field(default=("google", "twitter", "fluent"), min_length=1)
    themes: dict[str, tuple[str, ...]] = Field(
        default={
            "hearts": ("red heart", "blue heart", "green heart", "yellow heart"),
            "animals": ("fox", "frog", "lion", "turtle"),
            "food": ("pizza", "bread", "strawberry", "lemon"),
        },
        min_length=1,
    )
    concentration: float = Field(default=0.5, gt=0, le=1000)

    @field_validator("themes")
    @classmethod
    def _must_name_things(cls, themes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, things in themes.items():
            if not things:
                raise ValueError(f"the theme {name!r} has no captions")
        return themes


class Surge(Section):
    """A while in which everybody asks more often."""

    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)
    times: float = Field(gt=1, le=1000)


class Arrivals(Section):
    """When a device is asked for a picture."""

    law: Literal["poisson", "steady"] = "poisson"
    per_minute: float = Field(default=1.0, gt=0, le=600, description="pictures of a device")
    surges: tuple[Surge, ...] = ()


class Hub(Section):
    """The hub's workers; the first one also records."""

    workers: int = Field(default=1, ge=1, le=256)
    slots: int = Field(default=64, ge=1, description="pictures that a worker has open")
    speed: float = Field(default=1.0, ge=0.01, le=1000, description="of the profile's worker")
    engine: EngineSettings = EngineSettings()


class Rounds(Section):
    """Federated rounds beside the pictures, of a small head that every device has."""

    at_s: float = Field(ge=0, description="of the first one")
    every_s: float = Field(default=60.0, gt=0, description="between two of them")
    count: int = Field(default=3, ge=1, le=100)


class Scenario(Section):
    """A whole scenario."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    about: str = Field(min_length=1, description="one sentence")
    devices: int = Field(ge=1, le=MOST_DEVICES)
    seconds: float = Field(gt=0, le=MOST_SECONDS, description="for which pictures are asked for")
    grid: int = Field(default=16, ge=4, le=32, description="tokens in a row, virtual clock only")
    kinds: tuple[Kind, ...] = Field(default=(Kind(name="phone"),), min_length=1)
    links: tuple[Link, ...] = Field(default=(Link(name="wifi"),), min_length=1)
    captions: Captions = Captions()
    arrivals: Arrivals = Arrivals()
    hub: Hub = Hub()
    rounds: Rounds | None = None
    generation: GenerationSettings = GenerationSettings()
    faults: tuple[Fault, ...] = ()

    @model_validator(mode="after")
    def _must_hang_together(self) -> Self:
        for what, members in (("kinds", self.kinds), ("links", self.links)):
            total = sum(member.share for member in members)
            if abs(total - 1) > 1e-6:
                raise ValueError(f"the shares of {what} sum to {total:g}, not to 1")
        for fault in self.faults:
            if fault.at_s > self.seconds:
                raise ValueError(
                    f"the fault {fault.kind!r} at {fault.at_s:g} s begins after the scenario's end"
                    f" at {self.seconds:g} s"
                )
            if isinstance(fault, PoisonUpdates) and self.rounds is None:
                raise ValueError("the fault 'poison-updates' needs rounds: give the table [rounds]")
            worker = getattr(fault, "worker", 0)
            if worker >= self.hub.workers:
                raise ValueError(
                    f"the fault {fault.kind!r} names worker {worker}; the workers are 0 to"
                    f" {self.hub.workers - 1}"
                )
        return self

    @cached_property
    def quiet_from_s(self) -> float:
        """When the last fault is over and nobody asks any more."""
        return max([self.seconds, *(fault.ends_s for fault in self.faults)])
