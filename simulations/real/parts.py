"""Which devices share a process: those that a signal falls on together have one of their own."""

from collections import defaultdict
from dataclasses import dataclass

from simulations.scenarios.faults import KillAgents, StallAgents
from simulations.scenarios.population import struck
from simulations.scenarios.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Part:
    """Devices by their places in the fleet, and the scenario's faults that are their process's."""

    places: tuple[int, ...]
    faults: frozenset[int]


def parts_of(scenario: Scenario, seed: int, count: int) -> list[Part]:
    """The fleet in parts: at most `count` that no signal falls on, and what signals take."""
    signals: dict[int, set[int]] = defaultdict(set)
    for index, fault in enumerate(scenario.faults):
        if isinstance(fault, KillAgents | StallAgents):
            for place in struck(scenario, seed, index):
                signals[place].add(index)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place in range(scenario.devices):
        groups[tuple(sorted(signals[place]))].append(place)
    calm = groups.pop((), [])
    shared = [calm[part::count] for part in range(count)]
    return [
        *(Part(tuple(places), frozenset()) for places in shared if places),
        *(Part(tuple(places), frozenset(faults)) for faults, places in sorted(groups.items())),
    ]
