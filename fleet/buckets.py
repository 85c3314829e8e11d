"""Which bucket a value, a score or a position is counted in; pure.

Values are counted in log buckets as in DDSketch (Masson et al., VLDB 2019): bucket i holds
(γ^(i-1), γ^i] with γ = (1 + α) / (1 - α), and stands for 2 γ^i / (γ + 1), which is at most the
share α away from any value in it. So a quantile that is read from counts is within α of the value
of its rank, whatever the rows were, and counts of any rows can be added up.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.02  # largest relative error of a quantile
GAMMA = (1 + ALPHA) / (1 - ALPHA)
SMALLEST = 1e-9  # values up to it count as 0
ZERO = -(1 << 15)  # their bucket
_LOG_GAMMA = math.log(GAMMA)
_HIGHEST = (1 << 15) - 1

SCORE_CODES_A_BIN = 4  # of the 256 codes of `fleet/protocol/arrays.py: pack_scores`
SCORE_BINS = 256 // SCORE_CODES_A_BIN
REGIONS_A_SIDE = 4


def bucket_of(value: float) -> int:
    """The bucket of a value of 0 or more."""
    if value <= SMALLEST:
        return ZERO
    return min(math.ceil(math.log(value) / _LOG_GAMMA), _HIGHEST)


def value_of(bucket: int) -> float:
    """What a bucket stands for: within `ALPHA` of every value in it."""
    return 0.0 if bucket == ZERO else float(2 * GAMMA**bucket / (GAMMA + 1))


def quantile(counts: Sequence[tuple[int, int]], share: float) -> float | None:
    """The value of rank ⌈share · n⌉ from counts by bucket, rising."""
    rank = share * sum(count for _, count in counts) - 1e-9
    reached = 0
    for bucket, count in counts:
        reached += count
        if reached >= rank:
            return value_of(bucket)
    return None


def score_bins(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The bins [n] of score codes [n]; a bin spans a factor of 1.66."""
    return codes.astype(np.int64) // SCORE_CODES_A_BIN


def regions(positions: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    """The regions [n] of positions [n] in a square picture: 4 x 4, row by row."""
    side = max(1, math.isqrt(max(tokens, 1) - 1) + 1)  # rounded up
    rows, columns = positions // side, positions % side
    return rows * REGIONS_A_SIDE // side * REGIONS_A_SIDE + columns * REGIONS_A_SIDE // side
