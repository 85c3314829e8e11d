"""How far rounds by Inter-DRO are ahead of rounds by plain distillation, and how surely."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matches = NDArray[np.float64]
SHARES = (0.1, 0.2, 1.0)  # of the devices: the worst tenth, the worst fifth, all
_FLEETS = 2000


@dataclass(frozen=True, slots=True)
class Lead:
    """One match less another one, and its standard error.

    The error is the standard deviation over fleets whose devices are drawn from these with
    replacement, each with all its pictures (bootstrap, Efron 1979).
    """

    value: float
    error: float

    def __str__(self) -> str:
        """In points: "+0.26 ± 0.05"."""
        return f"{100 * self.value:+.2f} ± {100 * self.error:.2f}"


def of_the_lowest(ours: Matches, theirs: Matches, share: float) -> Lead:
    """The lead where match is lowest, for each of both by itself, as the page's table has it.

    Both are matches [D, P] of the same P pictures of D devices.
    """

    def lead(first: Matches, second: Matches) -> float:
        return _lowest(first, share) - _lowest(second, share)

    return _with_error(lead, ours, theirs)


def of_the_lowest_elsewhere(ours: Matches, theirs: Matches, share: float) -> Lead:
    """The lead on each picture, on the devices that are lowest on all their other pictures.

    Whoever is lowest on the pictures it is scored on may be so by the chance of these; here
    chance that chooses a device does not score it (cross-validation, leaving one out). Lowest is
    by the mean of both matches [D, P], so that neither chooses.
    """

    def lead(first: Matches, second: Matches) -> float:
        both = first + second
        others = both.sum(axis=1, keepdims=True) - both
        lowest = np.argsort(others, axis=0, kind="stable")[: _count(share, len(both))]
        return float(np.take_along_axis(first - second, lowest, axis=0).mean())

    return _with_error(lead, ours, theirs)


def _with_error(lead: Callable[[Matches, Matches], float], ours: Matches, theirs: Matches) -> Lead:
    rng, size = np.random.default_rng(1), len(ours)
    fleets = rng.integers(0, size, (_FLEETS, size))
    spread = np.std([lead(ours[fleet], theirs[fleet]) for fleet in fleets])
    return Lead(lead(ours, theirs), float(spread))


def _lowest(matches: Matches, share: float) -> float:
    return float(np.sort(matches.mean(axis=1))[: _count(share, len(matches))].mean())


def _count(share: float, devices: int) -> int:
    return max(int(np.ceil(share * devices)), 1)
