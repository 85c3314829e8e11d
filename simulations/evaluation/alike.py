"""Whether another score would have asked elsewhere: all of them along the same pictures."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.prediction import SCORE_NAMES
from fleet.training.metrics import spearman
from simulations.evaluation.jobs import Sample
from simulations.evaluation.metrics import Estimate, over_groups
from simulations.evaluation.moment import LOCAL

CODES_APART = "code distance, known"  # what a perfect score would ask by
Values = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Alike:
    """A score along the pictures of a gate, asking at as many positions as the gate did.

    Attributes:
        rank: Spearman's correlation with the gate's own score; None for what no device knows.
        same: Share of the gate's questions that this score asks too.
        caught: Share of the positions with differing draws that it asks about.
        harm: Share of the squared code distance of all differing draws that it asks about.
    """

    name: str
    rank: Estimate | None
    same: Estimate
    caught: Estimate
    harm: Estimate


def alike(sample: Sample, codes: Values, groups: NDArray[np.int64], prefix: int) -> list[Alike]:
    """Every score along a gate's sample of N pictures, and then the draws' own distance."""
    groups, behind = groups[: len(sample)], np.s_[:, prefix:]
    asked = sample.decisions[behind] != LOCAL
    apart = np.square(codes[sample.drafts[behind]] - codes[sample.own[behind]]).sum(axis=-1)
    gate = sample.score[behind]

    def look(name: str, values: Values, *, known: bool) -> Alike:
        top = values > np.quantile(values, 1 - asked.mean())

        def of(weight: Values | NDArray[np.bool_]) -> Estimate:
            return over_groups(
                lambda rows: float((top * weight)[rows].sum() / weight[rows].sum()), groups
            )

        rank = over_groups(lambda rows: _rank(values[rows], gate[rows]), groups)
        return Alike(name, None if known else rank, of(asked), of(apart > 0), of(apart))

    scores = sample.scores[behind]
    found = [look(n, scores[..., index], known=False) for index, n in enumerate(SCORE_NAMES)]
    return [*found, look(CODES_APART, apart, known=True)]


def _rank(first: Values, second: Values) -> float:
    return spearman(first.ravel().astype(np.float64), second.ravel().astype(np.float64))
