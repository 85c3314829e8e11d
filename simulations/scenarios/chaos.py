"""Faults drawn by a seed: what a search for broken laws adds to a scenario; pure."""

from typing import Any

import numpy as np

from simulations.scenarios.faults import KINDS, REAL_ONLY, OnDevices, OnWorker, kinds_of
from simulations.scenarios.scenario import Scenario

_APART = ("poison-updates", "bad-rollout")  # of rounds and rollouts, which a search has not
_DRAWN = [kind for kind in KINDS if kind not in (*REAL_ONLY, *_APART)]
_MOST_BYTES = 8000  # about a picture of the search
_LONGEST = 0.5  # of the scenario's length


def with_trouble(scenario: Scenario, seed: int, count: int) -> Scenario:
    """The scenario with so many more faults, of any kind, at any time, together or apart."""
    rng = np.random.default_rng([seed, 4])
    drawn = [_fault(scenario, rng) for _ in range(count)]
    values = scenario.model_dump()
    return Scenario.model_validate({**values, "faults": [*values["faults"], *drawn]})


def _fault(scenario: Scenario, rng: np.random.Generator) -> dict[str, Any]:
    kind = _DRAWN[rng.integers(len(_DRAWN))]
    fault: dict[str, Any] = {
        "kind": kind,
        "at_s": round(float(rng.uniform(0, scenario.seconds)), 3),
        "for_s": round(float(rng.exponential(_LONGEST / 3) * scenario.seconds) + 0.1, 3),
    }
    if kind in kinds_of(OnDevices):
        fault["share"] = round(float(rng.uniform(0.1, 1)), 3)
    if kind in kinds_of(OnWorker):
        fault["worker"] = int(rng.integers(scenario.hub.workers))
    if kind == "limit-links":
        fault["bytes"] = int(rng.integers(1, _MOST_BYTES))
    if kind == "jump-clock":
        fault["by_s"] = float(rng.choice([-3600, -5, 5, 3600]))
    return fault
