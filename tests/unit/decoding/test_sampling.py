"""Laws of guidance, temperature, top-k and the draw."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, guide, law, sharpen
from fleet.errors import InvalidInputError
from fleet.protocol.messages import Sampling
from tests.unit.decoding.laws import Floats, chi_square_z, total_variation


@dataclass(frozen=True)
class Sharp:
    """Sampling without guidance."""

    temperature: float = 1.0
    top_k: int = 0


LOGITS = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32) * 2


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_scale_of_one_or_less_is_the_conditional_branch_to_the_bit(scale: float) -> None:
    np.testing.assert_array_equal(guide(LOGITS[0], LOGITS[1], scale), LOGITS[0])


def test_guidance_goes_beyond_the_conditional_branch_by_the_scale() -> None:
    guided = guide(LOGITS[0], LOGITS[1], 7.5)

    expected = LOGITS[1].astype(np.float64) * -6.5 + LOGITS[0].astype(np.float64) * 7.5
    np.testing.assert_allclose(guided, expected, rtol=1e-5, atol=1e-5)
    assert guided.dtype == np.float32


def test_a_message_s_sampling_sharpens() -> None:
    sharp = sharpen(LOGITS, Sampling(temperature=0.5, top_k=10, guidance=3))

    kept = np.isfinite(sharp)
    assert kept.sum(axis=-1).tolist() == [10, 10]
    np.testing.assert_array_equal(sharp[kept], (LOGITS / np.float32(0.5))[kept])
    assert sharp.dtype == np.float32


@pytest.mark.parametrize("top_k", [0, 50, 51])
def test_no_cut_keeps_all_codes(top_k: int) -> None:
    np.testing.assert_array_equal(sharpen(LOGITS, Sharp(1.0, top_k)), LOGITS)


def test_codes_that_tie_with_the_last_one_kept_are_kept() -> None:
    logits = np.array([3.0, 1.0, 2.0, 2.0, 0.0])

    assert np.isfinite(sharpen(logits, Sharp(top_k=2))).tolist() == [True, False, True, True, False]
    assert np.isfinite(sharpen(np.zeros(5), Sharp(top_k=1))).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 50))
def test_the_cut_keeps_the_largest_whatever_their_order(seed: int, top_k: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, 8, 50).astype(float)
    order = rng.permutation(50)

    kept = np.isfinite(sharpen(logits, Sharp(top_k=top_k)))

    assert kept.sum() >= top_k
    assert logits[kept].min() > np.max(logits[~kept], initial=-np.inf)
    np.testing.assert_array_equal(
        kept[order], np.isfinite(sharpen(logits[order], Sharp(top_k=top_k)))
    )


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidInputError):
        sharpen(LOGITS, Sharp(temperature))


def test_draws_follow_the_softmax_of_the_logits() -> None:
    noise = gumbel(11, np.arange(40_000), 50)

    counts = np.bincount(draw(LOGITS[0], noise), minlength=50)

    assert chi_square_z(counts.astype(float), law(LOGITS[0]) * 40_000) < 4
    assert chi_square_z(counts.astype(float), law(LOGITS[1]) * 40_000) > 50  # it can tell


def test_draws_never_leave_the_cut() -> None:
    sharp = sharpen(LOGITS[0], Sharp(0.7, 5))

    tokens = draw(sharp, gumbel(12, np.arange(20_000), 50))

    counts = np.bincount(tokens, minlength=50)
    assert np.flatnonzero(counts).tolist() == np.flatnonzero(np.isfinite(sharp)).tolist()
    assert chi_square_z(counts[counts > 0].astype(float), law(sharp)[counts > 0] * 20_000) < 4


@pytest.mark.parametrize("distance", [0.1, 0.5, 1.0, 3.0])
def test_two_draws_with_one_noise_agree_as_often_as_the_coupling_bound_says(
    distance: float,
) -> None:
    rng = np.random.default_rng(5)
    p = rng.normal(size=50) * 2
    q = p + rng.normal(size=50) * distance
    noise = gumbel(13, np.arange(40_000), 50)

    matches = float((draw(p, noise) == draw(q, noise)).mean())

    apart = float(total_variation(law(p), law(q)))
    sigma = np.sqrt(matches * (1 - matches) / 40_000)
    assert matches >= (1 - apart) / (1 + apart) - 4 * sigma
    assert matches <= 1 - apart + 4 * sigma  # no coupling does better
    assert abs(matches - agreement(law(p), law(q))) <= 4 * sigma


def agreement(p: Floats, q: Floats) -> float:
    """Chance that both draws are the same code: sum over i of 1 / sum over k of max ratios."""
    ratios = np.maximum(p[None, :] / p[:, None], q[None, :] / q[:, None])
    return float((1 / ratios.sum(axis=1)).sum())
