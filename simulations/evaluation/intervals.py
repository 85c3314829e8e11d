"""What the device's intervals hold, on real pictures and on those that ours drew."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.prediction import SCORE_NAMES
from fleet.training.examples import Batch
from fleet.training.metrics import Comparison, compare, spearman
from simulations.evaluation.family import Family
from simulations.evaluation.metrics import Estimate

BINS = 10
Measure = Callable[[Comparison, NDArray[np.bool_]], float]


@dataclass(frozen=True, slots=True)
class IntervalFigures:
    """Figures with their spread over groups of pictures; laws at guidance 1, temperature 1."""

    histories: str
    pictures: int
    coverage: Estimate
    distance: Estimate  # total variation
    within_bound: Estimate  # share of positions with TV <= B
    rank_correlation: Estimate  # Spearman's, of B with TV
    greedy_match: Estimate
    shared_match: Estimate  # both draw the same token from one noise


@dataclass(frozen=True, slots=True, eq=False)
class Reliability:
    """Bins of equal numbers of positions by B: mean B and mean TV of each."""

    bound: NDArray[np.float64]
    distance: NDArray[np.float64]


def look(family: Family, captions: list[str], tokens: NDArray[np.integer]) -> Comparison:
    """Both models on given tokens [N, T], teacher-forced."""
    batch = Batch(
        torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(family.words(captions))
    )
    return compare(family.cloud, family.parts, family.codes, batch)


def figures(
    histories: str,
    seen: Comparison,
    tokens: int,
    groups: NDArray[np.int64],
    chosen: NDArray[np.bool_],
) -> IntervalFigures:
    """The figures of the `chosen` pictures of a comparison, each of `tokens` positions and a group.

    Groups without a chosen picture do not count; a spread over one group is not a number.
    """
    owner, rows = np.repeat(groups, tokens), np.repeat(chosen, tokens)

    def estimate(of: Measure) -> Estimate:
        parts = [of(seen, rows & (owner == name)) for name in np.unique(groups[chosen])]
        spread = float(np.std(parts, ddof=1)) if len(parts) > 1 else float("nan")
        return Estimate(of(seen, rows), spread)

    return IntervalFigures(
        histories,
        int(chosen.sum()),
        estimate(lambda c, rows: float(c.coverage[rows].mean())),
        estimate(lambda c, rows: float(c.distance[rows].mean())),
        estimate(lambda c, rows: float((c.distance <= _bound(c) + 1e-6)[rows].mean())),
        estimate(lambda c, rows: spearman(_bound(c)[rows], c.distance[rows])),
        estimate(lambda c, rows: float(1 - c.greedy_mismatch[rows].mean())),
        estimate(lambda c, rows: float(1 - c.mismatch[rows].mean())),
    )


def reliability(seen: Comparison) -> Reliability:
    """B against what it bounds."""
    order = np.array_split(np.argsort(_bound(seen)), BINS)
    return Reliability(
        np.array([_bound(seen)[part].mean() for part in order]),
        np.array([seen.distance[part].mean() for part in order]),
    )


def _bound(seen: Comparison) -> NDArray[np.float64]:
    found: NDArray[np.float64] = seen.scores[:, SCORE_NAMES.index("rejection_bound")]
    return found
