"""The virtual clock held against this machine's own: one scenario, both ways, within bounds.

Either on stand-ins, whose time is known (`bench`), or with real models, programs and broker next
to a world on a profile measured here (`bench_programs`). The bounds are stated in
docs/simulation.md and held by `tests/integration/simulations/test_clocks.py`.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.models.bundle import reference_path
from simulations.history.tally import Tally
from simulations.profile import Profile
from simulations.profile_measure import measure
from simulations.real.run import RealOrder, run_real
from simulations.scenarios.files import parse
from simulations.scenarios.scenario import Scenario
from simulations.world.world import Order, rehearse, simulate

# Real / virtual, at least and at most. What is computed takes time on the real clock only.
Bounds = Mapping[str, tuple[float, float]]
STAND_INS: Bounds = {
    "pictures": (1.0, 1.0),
    "seconds of a picture, p50": (0.9, 1.6),
    "seconds of a picture, p95": (0.8, 2.0),
    "round trips of a picture": (0.7, 1.4),
    "cloud share": (0.8, 1.25),
}
PROGRAMS: Bounds = {
    "pictures": (1.0, 1.0),
    "seconds of a picture, p50": (0.4, 4.0),
    "round trips of a picture": (0.5, 2.0),
    "cloud share": (0.6, 1.6),
}


_PROBE_EVERY_S, _PROBE_S = 0.3, 0.02


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of both clocks, and between which ratios it must lie."""

    subject: str
    virtual: float
    real: float
    ratio: float  # real / virtual
    low: float
    high: float
    agrees: str  # yes or no


def bench(profile: Profile, *, devices: int, seconds: float) -> list[Compared]:
    """Devices and workers ten times slower than the profile's, so that models take the time."""
    scenario = _scenario(
        devices, seconds, grid=8, kinds=[{"name": "slow", "speed": 0.1}], hub={"speed": 0.1}
    )
    with tempfile.TemporaryDirectory() as folder:
        virtual = simulate(Order(scenario, 1, Path(folder) / "virtual", profile))
        real = rehearse(Order(scenario, 1, Path(folder) / "real", profile))
    return compared(virtual, real, STAND_INS)


def bench_programs(*, devices: int, seconds: float) -> list[Compared]:
    """Real models and programs, next to a world on a profile measured just before."""
    patience = {"deadline_s": 240.0, "outage_patience_s": 240.0}
    scenario = _scenario(devices, seconds, generation=patience)
    profile = measure(reference_path(), rounds=20, pictures=1)
    with tempfile.TemporaryDirectory() as folder:
        virtual = simulate(Order(scenario, 1, Path(folder) / "virtual", profile))
        with delays() as delay:
            real = run_real(RealOrder(scenario, 1, Path(folder) / "real", crowds=1))
    return compared(virtual, real, PROGRAMS, delay())


@contextmanager
def delays() -> Iterator[Callable[[], float]]:
    """How many times longer than alone the machine made a thread take for its work, so far.

    A profile is of processor seconds; what else the machine had to do is no matter of the clocks.
    """
    spent_s, took_s, is_over = 0.0, 1e-9, threading.Event()

    def work() -> None:
        nonlocal spent_s, took_s
        while not is_over.wait(_PROBE_EVERY_S):
            begun, used = time.monotonic(), time.thread_time()
            while time.thread_time() - used < _PROBE_S:
                pass
            spent_s += time.thread_time() - used
            took_s += time.monotonic() - begun

    thread = threading.Thread(target=work, name="delays", daemon=True)
    thread.start()
    try:
        yield lambda: max(took_s / spent_s, 1.0) if spent_s else 1.0
    finally:
        is_over.set()
        thread.join()


def compared(virtual: Tally, real: Tally, bounds: Bounds, delay: float = 1.0) -> list[Compared]:
    """Each figure that has bounds, on both clocks; real seconds over the machine's delay."""
    ones, others = _figures(virtual), _figures(real)
    others |= {name: value / delay for name, value in others.items() if "seconds" in name}
    found = []
    for name, (low, high) in bounds.items():
        ratio = others[name] / ones[name] if ones[name] else 0.0
        agrees = "yes" if low <= ratio <= high else "no"
        found.append(Compared(name, ones[name], others[name], ratio, low, high, agrees))
    return found


def _scenario(devices: int, seconds: float, **more: object) -> Scenario:
    values = {
        "name": "clocks",
        "about": "One scenario on both clocks.",
        "devices": devices,
        "seconds": seconds,
        "arrivals": {"law": "steady", "per_minute": 6},
        **more,
    }
    return parse(values, source="bench")


def _figures(tally: Tally) -> dict[str, float]:
    made = max(tally.made, 1)
    return {
        "pictures": tally.made,
        "seconds of a picture, p50": tally.latency_s(0.5),
        "seconds of a picture, p95": tally.latency_s(0.95),
        "round trips of a picture": tally.summed["round_trips"] / made,
        "cloud share": tally.cloud_share,
    }
