"""The virtual clock held against this machine's own: one scenario, stand-ins, both ways."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from simulations.history.tally import Tally
from simulations.profile import Profile
from simulations.scenarios.files import parse
from simulations.world.world import Order, rehearse, simulate


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of both clocks; what is computed takes time on the real one only."""

    subject: str
    virtual: float
    real: float
    ratio: float  # virtual / real


def bench(profile: Profile, *, devices: int, seconds: float) -> list[Compared]:
    """Devices and workers ten times slower than the profile's, so that models take the time."""
    scenario = parse(
        {
            "name": "clocks",
            "about": "Slow devices on both clocks.",
            "devices": devices,
            "seconds": seconds,
            "grid": 8,
            "kinds": [{"name": "slow", "speed": 0.1}],
            "arrivals": {"per_minute": 6},
            "hub": {"speed": 0.1},
        },
        source="bench",
    )
    with tempfile.TemporaryDirectory() as folder:
        virtual = simulate(Order(scenario, 1, Path(folder) / "virtual", profile))
        real = rehearse(Order(scenario, 1, Path(folder) / "real", profile))
    return [
        Compared(name, one, other, one / other if other else 0.0)
        for (name, one), (_, other) in zip(_figures(virtual), _figures(real), strict=True)
    ]


def _figures(tally: Tally) -> list[tuple[str, float]]:
    made = max(tally.made, 1)
    return [
        ("pictures", tally.made),
        ("seconds of a picture, p50", tally.latency_s(0.5)),
        ("seconds of a picture, p95", tally.latency_s(0.95)),
        ("round trips of a picture", tally.summed["round_trips"] / made),
        ("cloud share", tally.cloud_share),
        ("finished without the cloud", made - tally.fallbacks[""]),
    ]
