"""What the tests of decoding share: reference formulas, random cases, and a chi-square."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fleet.interval import Interval, interval_softmax

Floats = NDArray[np.floating[Any]]
Exact = NDArray[np.longdouble]


@st.composite
def heads(draw: st.DrawFn, sizes: tuple[int, ...] = (2, 3, 50, 1024)) -> tuple[Floats, Floats]:
    """Center logits and radii [2, V]: any scale up to ±60 and 10, some flat, peaked or zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (2, draw(st.sampled_from(sizes)))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    logits = rng.uniform(-1, 1, shape) * draw(st.sampled_from([0.0, 0.3, 1.0, 5.0, 20.0, 60.0]))
    radius = rng.uniform(0, 1, shape) * draw(st.sampled_from([0.0, 1e-6, 0.01, 1.0, 10.0]))
    if draw(st.booleans()):
        logits[:, 0] = 60.0
    if draw(st.booleans()):
        radius[:, ::2] = 0.0
    return logits.astype(kind), radius.astype(kind)


@st.composite
def intervals(draw: st.DrawFn, sizes: tuple[int, ...] = (2, 3, 50, 1024)) -> Interval:
    """Intervals [2, V]."""
    return interval_softmax(*draw(heads(sizes)))


def exact_odds(logits: Floats) -> Exact:
    """Log-odds [..., V] from the definition, with extended precision where there is one."""
    wide = logits.astype(np.longdouble)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
    before = np.cumsum(weights, axis=-1) - weights
    before[..., 1:] = np.cumsum(weights, axis=-1)[..., :-1]
    after = np.cumsum(weights[..., ::-1], axis=-1)[..., ::-1]
    after = np.concatenate([after[..., 1:], np.zeros_like(after[..., :1])], axis=-1)
    with np.errstate(divide="ignore"):
        odds = wide - wide.max(axis=-1, keepdims=True) - np.log(before + after)
    clamped: Exact = np.clip(odds, -60, 60)
    return clamped


def logistic(odds: Exact) -> Exact:
    """1 / (1 + e^-odds) for odds within ±70."""
    return np.longdouble(1) / (1 + np.exp(-odds))


def chi_square_z(observed: Floats, expected: Floats) -> float:
    """How many standard deviations Pearson's statistic lies above what chance would give.

    Cells with fewer than five expected counts are pooled.
    """
    large = expected >= 5
    observed = np.append(observed[large], observed[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1]
    return normal_deviate(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1)


def normal_deviate(statistic: float, freedom: int) -> float:
    """A chi-square statistic as standard deviations (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))


def total_variation(first: Floats, second: Floats) -> Floats:
    """Total variation distance [...] of laws [..., V]."""
    distance: Floats = np.abs(first.astype(np.float64) - second).sum(axis=-1) / 2
    return distance
