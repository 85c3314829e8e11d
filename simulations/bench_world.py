"""How fast a world goes: virtual seconds in a second of the clock, and of processor time.

Both are taken while the fleet lives: making a thousand agents, stopping them and holding the
history against its laws cost what they cost once, however long the world is.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter as real_seconds  # a world replaces `time.perf_counter`

from fleet.errors import InvalidInputError
from simulations.history.tally import Tally
from simulations.profile import Profile
from simulations.runs import run
from simulations.scenarios.files import parse
from simulations.scenarios.scenario import Scenario
from simulations.world.world import Order

PER_MINUTE = 1.0
TICKS = 6  # of a world; what comes before the first is its start


@dataclass(frozen=True, slots=True)
class Speed:
    """A world of so many devices at a picture a minute each."""

    devices: int
    seconds: float  # virtual, of the whole world
    pictures: int
    seconds_a_second: float  # virtual ones in a real one
    seconds_a_cpu_second: float  # virtual ones in one of processor time
    ms_a_picture: float  # of processor time; what devices do beside pictures is in it
    whole_cpu_s: float  # start, end and the check of all laws included
    broken_laws: int


@dataclass(frozen=True, slots=True)
class _Point:
    """A moment of a world."""

    real_s: float
    cpu_s: float
    pictures: int


def bench(profile: Profile, *, fleets: list[int], seconds: float) -> list[Speed]:
    """Worlds of several sizes, without faults; a worker for every 150 devices.

    Raises:
        InvalidInputError: A world is over before its rate can be taken.
    """
    return [_measure(profile, devices, seconds) for devices in fleets]


def _measure(profile: Profile, devices: int, seconds: float) -> Speed:
    points: list[_Point] = []

    def look(tally: Tally) -> None:
        points.append(_Point(real_seconds(), time.process_time(), tally.made))

    every_s = seconds / TICKS
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        order = Order(_scenario(devices, seconds), 1, Path(folder), profile, tick_s=every_s)
        found = run(order, look)
        whole_s = time.process_time() - began
    alive = points[:-1][:TICKS]  # the last one is the end; before it there may be few
    if len(alive) < 2:
        raise InvalidInputError(
            f"{devices} devices have nothing to do for {seconds:g} s: take more"
        )
    first, last = alive[0], alive[-1]
    virtual_s, cpu_s = every_s * (len(alive) - 1), last.cpu_s - first.cpu_s
    return Speed(
        devices=devices,
        seconds=found.tally.at_s,
        pictures=found.tally.made,
        seconds_a_second=virtual_s / (last.real_s - first.real_s),
        seconds_a_cpu_second=virtual_s / cpu_s,
        ms_a_picture=cpu_s / max(last.pictures - first.pictures, 1) * 1e3,
        whole_cpu_s=whole_s,
        broken_laws=len(found.violations),
    )


def _scenario(devices: int, seconds: float) -> Scenario:
    return parse(
        {
            "name": "bench",
            "about": "A fleet without faults.",
            "devices": devices,
            "seconds": seconds,
            "links": [{"name": "wifi", "share": 0.6}, {"name": "4g", "share": 0.4}],
            "arrivals": {"per_minute": PER_MINUTE},
            "hub": {"workers": 1 + devices // 150},
        },
        source="bench",
    )
