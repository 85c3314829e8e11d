"""`python -m simulations capacity`: what a fleet asks of a hub, measured in a small world."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloud_hub.settings import EngineSettings
from cloud_hub.store.database import Database
from fleet.errors import InvalidInputError
from simulations.capacity import Costs, Demand, Load, Scale, load, most_devices, scales
from simulations.history.events import Event
from simulations.profile import Profile
from simulations.runs import run
from simulations.scenarios.files import parse
from simulations.world.world import DATABASE, Order

FLEETS = (1_000, 10_000, 100_000, 1_000_000)
_DEVICES, _SECONDS, _PER_MINUTE = 6, 60.0, 4.0  # of the world in which demand is measured
_MOST_SPANS = EngineSettings().batch_spans


@dataclass(frozen=True, slots=True)
class Asked:
    """What a picture asks of a hub: `demand` of the engine, bytes of the broker."""

    demand: Demand
    picture_bytes: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How far a worker goes, and how many a fleet takes."""

    asked: Asked
    best: Load
    fleets: Sequence[Scale]


@dataclass(frozen=True, slots=True)
class Checked:
    """A worker's mean seconds for a request, by the queue and in a world."""

    devices: int
    busy: float
    queue_s: float
    world_s: float
    ratio: float  # world / queue


def plan(profile: Profile, *, per_minute: float, p95_s: float, speed: float) -> Plan:
    """What a worker of that speed serves within `p95_s` a request, 19 of 20 of them.

    Raises:
        InvalidInputError: Not one device, or a figure that is not above 0.
    """
    for name, value in (("per-minute", per_minute), ("p95", p95_s), ("speed", speed)):
        if not 0 < value < math.inf:
            raise InvalidInputError(f"--{name} is {value:g}: give a number above 0")
    asked, costs = measure(profile), costs_of(profile, speed)
    best = most_devices(p95_s, per_minute, asked.demand, costs, _MOST_SPANS)
    if best is None:
        raise InvalidInputError(
            f"no device is served within {p95_s:g} s: a forward alone takes {costs.forward_s:.3g} s"
        )
    fleets = scales(FLEETS, per_minute, best, asked.demand, asked.picture_bytes)
    return Plan(asked, best, list(fleets))


def costs_of(profile: Profile, speed: float) -> Costs:
    """A worker's costs at so many times the profile's speed."""
    worker = profile.worker
    return Costs(worker.forward_s / speed, worker.token_s / speed, worker.request_s / speed)


def measure(profile: Profile) -> Asked:
    """What pictures of the profile's models ask of an idle hub."""
    _, events = _world(profile, devices=_DEVICES, seconds=_SECONDS, per_minute=_PER_MINUTE)
    made = [event for event in events if event["event"] == "made"]
    sent = sum(event["bytes_up"] + event["bytes_down"] for event in made)
    return Asked(_demand(events, len(made)), sent / len(made))


def checked(profile: Profile, devices: int, *, seconds: float, per_minute: float) -> Checked:
    """The queue held against a world with so many devices on one worker."""
    world_s, events = _world(profile, devices=devices, seconds=seconds, per_minute=per_minute)
    made = sum(event["event"] == "made" for event in events)
    arrived = made / devices / seconds * 60
    found = load(devices, arrived, _demand(events, made), costs_of(profile, 1.0), _MOST_SPANS)
    return Checked(devices, found.busy, found.mean_s, world_s, world_s / found.mean_s)


def _demand(events: Sequence[Event], pictures: int) -> Demand:
    """What the one worker of a world says at its end."""
    last = [event for event in events if event["event"] == "worker"][-1]
    return Demand(last["spans"] / pictures, last["tokens"] / pictures)


def _world(
    profile: Profile, *, devices: int, seconds: float, per_minute: float
) -> tuple[float, Sequence[Event]]:
    """Mean seconds of a request at the hub, and the events, of a world without faults."""
    scenario = parse(
        {
            "name": "capacity",
            "about": "Devices on one worker.",
            "devices": devices,
            "seconds": seconds,
            "arrivals": {"per_minute": per_minute},
            "hub": {"slots": 4 * devices},
        },
        source="capacity",
    )
    with tempfile.TemporaryDirectory() as folder:
        found = run(Order(scenario, 1, Path(folder), profile))
        with Database(f"sqlite:///{Path(folder) / DATABASE}", must_exist=True) as database:
            sums = "SUM(queue_s), SUM(forward_s), SUM(round_trips)"
            _, ((queue_s, forward_s, trips),) = database.select(
                f"SELECT {sums} FROM v_picture",  # noqa: S608  # our own names
                1,
            )
    return (queue_s + forward_s) / max(trips, 1), found.events
