"""Seeds tried one after the other: each a world with faults of its own, held against every law."""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from simulations.profile import Profile, load_profile
from simulations.runs import run
from simulations.scenarios.chaos import with_trouble
from simulations.scenarios.scenario import Scenario
from simulations.world.world import Order


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a seed: the laws it broke, or how the world itself ended."""

    seed: int
    pictures: int
    broken: tuple[str, ...]


def search(scenario: Scenario, seeds: range, *, trouble: int, processes: int) -> Iterator[Tried]:
    """Each seed with so many faults drawn by it, as they are done, in order."""
    work: Callable[[int], Tried] = partial(_try, scenario, load_profile(), trouble)
    if processes == 1:
        yield from map(work, seeds)
        return
    # A fresh interpreter each: a world replaces the clocks of its whole process.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(work, seeds, chunksize=4)


def _try(scenario: Scenario, profile: Profile, trouble: int, seed: int) -> Tried:
    with tempfile.TemporaryDirectory() as folder:
        order = Order(with_trouble(scenario, seed, trouble), seed, Path(folder), profile)
        try:
            found = run(order)
        except Exception as error:  # noqa: BLE001  # whatever ends a world is what is searched for
            return Tried(seed, 0, (f"the world ended: {type(error).__name__}: {error}",))
    broken = tuple(f"{each.law}: {each.where}" for each in found.violations)
    return Tried(seed, found.tally.made, broken)
