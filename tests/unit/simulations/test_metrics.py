"""Laws and known values of the distances between sets of pictures."""

import numpy as np
import pytest

from fleet.errors import InvalidInputError
from simulations.evaluation.metrics import (
    Features,
    Standard,
    frechet_distance,
    kernel_distance,
    kernel_distance_gap,
    pixel_distance,
    precision_recall,
    squared_discrepancy,
)

DIMENSIONS = 8


def normal(
    rng: np.random.Generator, count: int, shift: float = 0.0, scale: float = 1.0
) -> Features:
    return rng.normal(shift, scale, (count, DIMENSIONS))


def test_the_frechet_distance_of_two_normal_laws_is_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    real, made = normal(rng, 20_000), normal(rng, 20_000, shift=1.0, scale=2.0)

    distance = frechet_distance(real, made)

    # |μ - ν|² + Σ (σ - τ)² = 8 · 1 + 8 · (1 - 2)²
    assert distance == pytest.approx(16.0, rel=0.03)


def test_a_set_is_at_frechet_distance_zero_from_itself() -> None:
    real = normal(np.random.default_rng(2), 500)

    assert frechet_distance(real, real) == pytest.approx(0.0, abs=1e-8)


def test_the_kernel_distance_of_two_normal_laws_is_the_closed_form() -> None:
    # With x·y = Σ xᵢyᵢ and k = (x·y/D + 1)³ = 1 + 3s + 3s² + s³, s = x·y/D:
    # a shift δ in every channel adds E s = δ², E s² = δ⁴ + (2δ² + 1)/D, ... between two draws.
    rng = np.random.default_rng(3)
    real, made = normal(rng, 4_000), normal(rng, 4_000, shift=0.5)

    def moment(a: float, b: float) -> float:
        """E (x·y/D + 1)³ with x ~ N(a, 1), y ~ N(b, 1) in every channel, independent."""
        d, m = DIMENSIONS, a * b
        v = a**2 + b**2 + 1  # variance of one channel's product
        third = 6 * a * b  # third central moment of one channel's product
        mean, variance, skew = m, v / d, third / d**2
        return 1 + 3 * mean + 3 * (mean**2 + variance) + (mean**3 + 3 * mean * variance + skew)

    expected = moment(0, 0) + moment(0.5, 0.5) - 2 * moment(0, 0.5)

    assert squared_discrepancy(real, made) == pytest.approx(expected, rel=0.05)


def test_the_kernel_distance_is_unbiased_where_the_frechet_distance_is_not() -> None:
    rng = np.random.default_rng(4)
    pairs = [(normal(rng, 20), normal(rng, 20)) for _ in range(400)]

    kernel = np.array([squared_discrepancy(a, b) for a, b in pairs])
    frechet = np.array([frechet_distance(a, b) for a, b in pairs])

    standard_error = kernel.std() / np.sqrt(len(kernel))
    assert abs(kernel.mean()) < 3 * standard_error
    assert frechet.mean() > 1.0


def test_the_spread_is_that_of_the_groups() -> None:
    rng = np.random.default_rng(5)
    real, made = normal(rng, 300), normal(rng, 300, shift=0.3)
    groups = np.arange(300) % 3

    estimate = kernel_distance(real, made, groups=groups, subset=100, rng=rng)

    parts = [squared_discrepancy(real, made[groups == g]) for g in range(3)]
    assert estimate.value == squared_discrepancy(real, made)
    assert estimate.spread == pytest.approx(np.std(parts, ddof=1))


def test_the_spread_of_a_gap_leaves_out_what_moves_both_alike() -> None:
    rng = np.random.default_rng(4)
    groups = np.arange(600) % 3
    real = rng.normal(size=(600, 8))
    of_the_group = np.array([-0.5, 0.0, 0.5])[groups, None]
    near = rng.normal(size=(600, 8)) + of_the_group + 0.5
    far = near + 0.4

    gap = kernel_distance_gap(real, near, far, groups=groups)

    one, other = (
        kernel_distance(real, made, groups=groups, subset=100, rng=rng) for made in (near, far)
    )
    assert gap.value == pytest.approx(other.value - one.value)
    own = [squared_discrepancy(real, far[groups == g]) for g in range(3)]
    own = [each - squared_discrepancy(real, near[groups == g]) for g, each in enumerate(own)]
    assert gap.spread == pytest.approx(np.std(own, ddof=1))
    assert gap.spread < 0.7 * np.hypot(one.spread, other.spread)
    assert gap.in_spreads == pytest.approx(gap.value / gap.spread)


def test_one_group_takes_its_spread_from_subsets() -> None:
    rng = np.random.default_rng(6)
    real, made = normal(rng, 300), normal(rng, 300)
    groups = np.zeros(300, np.int64)

    estimate = kernel_distance(real, made, groups=groups, subset=100, rng=rng)

    assert estimate.spread > 0
    assert abs(estimate.value) < 3 * estimate.spread


def test_a_single_picture_is_no_sample() -> None:
    rng = np.random.default_rng(7)

    with pytest.raises(InvalidInputError, match="too small"):
        squared_discrepancy(normal(rng, 5), normal(rng, 1))


def test_the_same_set_has_precision_and_recall_one() -> None:
    real = normal(np.random.default_rng(8), 200)

    coverage = precision_recall(real, real)

    assert (coverage.precision, coverage.recall, coverage.f1) == (1.0, 1.0, 1.0)


def test_a_set_far_away_has_neither_precision_nor_recall() -> None:
    rng = np.random.default_rng(9)

    coverage = precision_recall(normal(rng, 100), normal(rng, 100, shift=50.0))

    assert (coverage.precision, coverage.recall, coverage.f1) == (0.0, 0.0, 0.0)


def test_one_mode_of_two_has_precision_without_recall() -> None:
    rng = np.random.default_rng(10)
    left, right = normal(rng, 300), normal(rng, 300, shift=20.0)

    coverage = precision_recall(np.concatenate([left, right]), normal(rng, 300))

    assert coverage.precision > 0.8
    assert 0.3 < coverage.recall <= 0.5


def test_features_are_standardised_by_the_real_set() -> None:
    rng = np.random.default_rng(11)
    real = normal(rng, 1_000, shift=3.0, scale=7.0)

    standardised = Standard.of(real).apply(real)

    np.testing.assert_allclose(standardised.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(standardised.std(axis=0), 1)


def test_a_channel_that_hardly_moves_is_not_blown_up() -> None:
    rng = np.random.default_rng(12)
    real = normal(rng, 1_000)
    real[:, 0] = 4.0
    real[:, 1] *= 1e-4
    made = real + 1e-3

    standardised = Standard.of(real).apply(made)

    assert np.abs(standardised[:, :2]).max() < 0.02


def test_pixel_distance_is_the_mean_square_without_wrapping() -> None:
    black = np.zeros((2, 4, 4, 3), np.uint8)
    white = np.full((2, 4, 4, 3), 255, np.uint8)

    assert pixel_distance(black, white) == 255**2
    assert pixel_distance(white, black) == 255**2
