"""Intervals around probabilities, and the interval softmax that makes them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

Floats = NDArray[np.floating]

MAX_LOG_ODDS = 60.0
MAX_RADIUS = 10.0

_LOG_HALF = math.log(0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """A probability interval for every code: the code's log-odds, give or take a radius.

    Attributes:
        log_odds: [..., V], log-odds of the center law, within ±60.
        radius: [..., V], half-width in log-odds, within 0 to 10.

    NaN passes through to every bound, so that a broken prediction gives no finite score.

    Raises:
        InvalidInputError: Shapes differ, there are fewer than two codes, a number is out of range.
    """

    log_odds: Floats
    radius: Floats

    def __post_init__(self) -> None:
        if self.log_odds.shape != self.radius.shape or self.log_odds.shape[-1:] < (2,):
            raise InvalidInputError(
                f"log-odds {self.log_odds.shape} and radius {self.radius.shape} must have one"
                " shape that ends with at least two codes"
            )
        if (np.abs(self.log_odds) > MAX_LOG_ODDS).any():
            raise InvalidInputError(f"log-odds beyond ±{MAX_LOG_ODDS}: clamp them first")
        if (self.radius < 0).any() or (self.radius > MAX_RADIUS).any():
            raise InvalidInputError(f"a radius must lie between 0 and {MAX_RADIUS}")

    @property
    def lower(self) -> Floats:
        """Lower probabilities [..., V]: above 0, at most `center`, with a sum of at most 1."""
        return np.minimum(_probability(self.log_odds - self.radius), self.center)

    @property
    def center(self) -> Floats:
        """The center law [..., V]: the softmax of the center logits."""
        return _probability(self.log_odds)

    @property
    def upper(self) -> Floats:
        """Upper probabilities [..., V]: below 1, at least `center`, with a sum of at least 1."""
        return np.maximum(_probability(self.log_odds + self.radius), self.center)

    @property
    def log_lower(self) -> Floats:
        """Logarithm of the lower probabilities [..., V]."""
        return -_softplus(self.radius - self.log_odds)

    @property
    def log_center(self) -> Floats:
        """Logarithm of the center law [..., V]."""
        return -_softplus(-self.log_odds)

    @property
    def log_upper(self) -> Floats:
        """Logarithm of the upper probabilities [..., V]."""
        return -_softplus(-self.radius - self.log_odds)

    @property
    def below(self) -> Floats:
        """`center - lower` [..., V] without cancellation: exactly 0 where the radius is."""
        return _difference(self.log_odds, self.log_odds - self.radius, self.radius)

    @property
    def above(self) -> Floats:
        """`upper - center` [..., V] without cancellation: exactly 0 where the radius is."""
        return _difference(self.log_odds + self.radius, self.log_odds, self.radius)

    @property
    def width(self) -> Floats:
        """`upper - lower` [..., V] without cancellation: exactly 0 where the radius is."""
        return _difference(
            self.log_odds + self.radius, self.log_odds - self.radius, 2 * self.radius
        )


def interval_softmax(center_logits: Floats, radius: Floats) -> Interval:
    """The interval of every code's probability, from center logits and radii, both [..., V].

    A code's lower (upper) probability is its softmax after its own logit alone is lowered
    (raised) by its radius: the interval softmax of credal deep ensembles (CreNet, NeurIPS
    2024), which stands for CIAR's InterFuse (arXiv:2603.25463). Radii above 10 count as 10.

    Raises:
        InvalidInputError: Shapes differ, there are fewer than two codes, or a radius is negative.
    """
    return Interval(log_odds(center_logits), np.minimum(radius, radius.dtype.type(MAX_RADIUS)))


def log_odds(logits: Floats) -> Floats:
    """Log-odds [..., V] of softmax(logits), clamped to ±60, in the logits' own precision.

    log(p / (1 - p)) = logit minus the log-sum-exp of the other logits. For all codes but the
    largest p <= 1/2, so the others' sum comes from p itself; for the largest it is summed anew.
    Masked codes (-inf) get the lowest value.
    """
    top = logits.argmax(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = logits - np.take_along_axis(logits, top, axis=-1)
        others = shifted.copy()
        np.put_along_axis(others, top, -np.inf, axis=-1)
        log_law = shifted - _log_sum_exp(shifted)
        odds = log_law - np.log1p(-np.exp(np.minimum(log_law, _LOG_HALF)))
        np.put_along_axis(odds, top, -_log_sum_exp(others), axis=-1)
    clamped: Floats = np.clip(odds, -MAX_LOG_ODDS, MAX_LOG_ODDS)
    return clamped


def _log_sum_exp(logits: Floats) -> Floats:
    largest: Floats = logits.max(axis=-1, keepdims=True)
    total: Floats = np.exp(logits - largest).sum(axis=-1, keepdims=True)
    log_sum: Floats = largest + np.log(total)
    return log_sum


def _sigmoid(odds: Floats) -> Floats:
    small = np.exp(-np.abs(odds))  # never overflows
    larger = 1 / (1 + small)
    return np.where(odds >= 0, larger, small * larger)


def _softplus(odds: Floats) -> Floats:
    rounded: Floats = np.maximum(odds, 0) + np.log1p(np.exp(-np.abs(odds)))
    return rounded


def _probability(odds: Floats) -> Floats:
    # The logistic function of anything beyond 17 rounds to 1 in float32, so 1 is taken to be
    # the largest number below it: bounds stay strictly inside (0, 1).
    kind = odds.dtype.type
    return np.clip(_sigmoid(odds), np.finfo(kind).tiny, np.nextafter(kind(1), kind(0)))


def _difference(high: Floats, low: Floats, gap: Floats) -> Floats:
    # s(high) - s(low) = s(high) s(-low) (1 - e^(low - high)): no term is a small difference.
    difference: Floats = _sigmoid(high) * _sigmoid(-low) * -np.expm1(-gap)
    return difference
