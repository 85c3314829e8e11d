"""Distances between sets of picture features: kernel, Fréchet, precision and recall.

All of them work on features standardised by the real set (`Standard`), so that no channel
counts more than another. The kernel distance is the primary figure: its estimate is unbiased
at any number of pictures, while the Fréchet distance shrinks as pictures are added.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

Features = NDArray[np.float64]  # [N, D]

# Of the median channel's deviation. Some channels are almost always 0 on real pictures; divided
# by their own tiny deviation they drown all others (simulations/LOG.md).
_LEAST_DEVIATION = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its spread (one standard deviation)."""

    value: float
    spread: float

    @property
    def in_spreads(self) -> float:
        """By how many spreads the figure differs from zero."""
        return self.value / self.spread

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.spread:.2g}"


@dataclass(frozen=True, slots=True)
class Standard:
    """Mean and standard deviation of each feature of the real set."""

    mean: Features  # [D]
    deviation: Features  # [D]

    @classmethod
    def of(cls, real: NDArray[np.floating]) -> "Standard":
        """The statistics of real features [N, D]; a tenth of the median is the least deviation."""
        values = real.astype(np.float64)
        deviation = values.std(axis=0)
        least = _LEAST_DEVIATION * np.median(deviation)
        return cls(values.mean(axis=0), np.maximum(deviation, least if least > 0 else 1.0))

    def apply(self, features: NDArray[np.floating]) -> Features:
        """Features [N, D] in units of the real set's spread."""
        return (features.astype(np.float64) - self.mean) / self.deviation


def squared_discrepancy(real: Features, made: Features, within: float | None = None) -> float:
    """Unbiased squared maximum mean discrepancy of two samples [n, D] and [m, D].

    The kernel is (x·y / D + 1)^3 (arXiv 1801.01401). The estimate may be negative: its mean is
    zero for two samples of one law. `within`: the `similarity` of the real sample, if it is known.

    Raises:
        InvalidInputError: A sample has fewer than two rows.
    """
    n, m = len(real), len(made)
    if n < 2 or m < 2:
        raise InvalidInputError(f"samples of {n} and {m} pictures are too small: take 2 or more")
    among = similarity(real) if within is None else within
    return float(among + similarity(made) - 2 * _kernel(real, made).mean())


def similarity(sample: Features) -> float:
    """Mean kernel of two different rows of a sample [n, D], n of 2 or more."""
    gram, n = _kernel(sample, sample), len(sample)
    # Leaving out the diagonal (a picture against itself) is what makes the estimate unbiased.
    return float(gram.sum() - np.trace(gram)) / (n * (n - 1))


def kernel_distance(
    real: Features,
    made: Features,
    *,
    groups: NDArray[np.int64],
    subset: int,
    rng: np.random.Generator,
) -> Estimate:
    """Kernel distance of `made` [m, D] from `real`, and its spread over independent groups.

    `groups` [m] names the group of each made picture (one seed a group). The spread is the
    standard deviation of the groups' own estimates; with a single group, that over ten random
    subsets of `subset` pictures.
    """
    value = squared_discrepancy(real, made)
    names = np.unique(groups)
    if len(names) > 1:
        parts = [squared_discrepancy(real, made[groups == name]) for name in names]
    else:
        size = min(subset, len(made), len(real))
        parts = [
            squared_discrepancy(_choose(real, size, rng), _choose(made, size, rng))
            for _ in range(10)
        ]
    return Estimate(value, float(np.std(parts, ddof=1)))


def kernel_distance_gap(
    real: Features, near: Features, far: Features, *, groups: NDArray[np.int64]
) -> Estimate:
    """Kernel distance of `far` [m, D] from `real`, less that of `near` [m, D].

    Row i of both is of the same caption and seed. The spread is that of the groups' own
    differences: which captions a group holds moves both distances alike, so their own spreads,
    added as if they were independent, would say too much.
    """

    def gap(chosen: NDArray[np.bool_]) -> float:
        return squared_discrepancy(real, far[chosen]) - squared_discrepancy(real, near[chosen])

    return over_groups(gap, groups)


def over_groups(
    figure: Callable[[NDArray[np.bool_]], float], groups: NDArray[np.int64]
) -> Estimate:
    """A figure of all rows, and the standard deviation of that of each group's [m] rows."""
    parts = [figure(groups == name) for name in np.unique(groups)]
    return Estimate(figure(np.ones(len(groups), bool)), float(np.std(parts, ddof=1)))


def frechet_distance(real: Features, made: Features) -> float:
    """Fréchet distance of the normal laws fitted to two samples (arXiv 1706.08500).

    |μ - ν|² + tr(A + B - 2 (A^½ B A^½)^½), by two symmetric eigenvalue problems.
    """
    mean = real.mean(axis=0) - made.mean(axis=0)
    a, b = np.cov(real, rowvar=False), np.cov(made, rowvar=False)
    values, vectors = np.linalg.eigh(np.atleast_2d(a))
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    overlap = np.sqrt(np.linalg.eigvalsh(root @ np.atleast_2d(b) @ root).clip(min=0)).sum()
    return float(
        mean @ mean + np.trace(np.atleast_2d(a)) + np.trace(np.atleast_2d(b)) - 2 * overlap
    )


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of made pictures that look real, and of the real set that is reached."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean of both; 0 when either is."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def precision_recall(real: Features, made: Features, neighbours: int = 3) -> Coverage:
    """Improved precision and recall with k-nearest-neighbour balls (arXiv 1904.06991)."""
    return Coverage(
        precision=_share_inside(made, real, neighbours),
        recall=_share_inside(real, made, neighbours),
    )


def pixel_distance(pictures: NDArray[np.uint8], reference: NDArray[np.uint8]) -> float:
    """Mean squared difference of 8-bit values of two lists of pictures [N, H, W, 3]."""
    difference = pictures.astype(np.float32) - reference.astype(np.float32)
    return float(np.square(difference).mean())


def _kernel(x: Features, y: Features) -> Features:
    base: Features = x @ y.T / x.shape[1] + 1
    return base * base * base  # numpy's power takes many times as long


def _choose(rows: Features, size: int, rng: np.random.Generator) -> Features:
    return rows[rng.choice(len(rows), size, replace=False)]


def _share_inside(points: Features, support: Features, neighbours: int) -> float:
    """The share of `points` inside at least one ball around a support point."""
    within = _squared_distances(support, support)
    np.fill_diagonal(within, np.inf)
    radius = np.partition(within, neighbours - 1, axis=1)[:, neighbours - 1]  # [S]
    return float((_squared_distances(points, support) <= radius).any(axis=1).mean())


def _squared_distances(x: Features, y: Features) -> Features:
    squares: Features = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2 * x @ y.T
    return squares.clip(min=0)
