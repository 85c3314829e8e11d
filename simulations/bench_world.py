"""How fast a world goes: virtual seconds in a second, of this process's processor time."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from simulations.profile import Profile
from simulations.runs import run
from simulations.scenarios.files import parse
from simulations.world.world import Order

PER_MINUTE = 1.0


@dataclass(frozen=True, slots=True)
class Speed:
    """A world of so many devices at a picture a minute each."""

    devices: int
    seconds: float  # virtual
    pictures: int
    seconds_a_second: float  # virtual ones in a second of processor time, start included
    ms_a_picture: float  # of processor time
    broken_laws: int


def bench(profile: Profile, *, fleets: list[int], seconds: float) -> list[Speed]:
    """Worlds of several sizes, without faults; a worker for every 150 devices."""
    return [_measure(profile, devices, seconds) for devices in fleets]


def _measure(profile: Profile, devices: int, seconds: float) -> Speed:
    scenario = parse(
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
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        found = run(Order(scenario, 1, Path(folder), profile))
        took_s = time.process_time() - began
    tally = found.tally
    return Speed(
        devices,
        tally.at_s,
        tally.made,
        tally.at_s / took_s,
        took_s / max(tally.made, 1) * 1e3,
        len(found.violations),
    )
