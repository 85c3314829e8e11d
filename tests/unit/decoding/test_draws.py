"""Draws of many pictures at once are those of each alone, to the bit."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.decoding.draws import Ask, draw_all
from fleet.decoding.noise import GREATEST, LEAST, gumbel, gumbel_at
from fleet.decoding.sampling import draw, law, sharpen
from fleet.decoding.top_laws import top_laws
from fleet.errors import InvalidInputError
from fleet.protocol.messages import Sampling

VOCAB = 70


class Sharp(NamedTuple):
    temperature: float
    top_k: int = 0


def ask(seed: int, count: int, sampling: Sampling, spread: float, likeliest: int) -> Ask:
    rng = np.random.default_rng(seed % 1000)
    positions = rng.choice(1 << 20, count, replace=False)
    logits = (spread * rng.standard_normal((count, VOCAB))).astype(np.float32)
    return Ask(sampling, seed, positions, logits, likeliest)


ASKS = st.builds(
    ask,
    st.integers(0, 2**63 - 1),
    st.integers(0, 5),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.3, 1.0]),
        top_k=st.sampled_from([0, 5]),
        guidance=st.just(1.0),
    ),
    st.sampled_from([0.0, 1.0, 30.0]),
    st.sampled_from([0, 4]),
)


@given(st.lists(ASKS, max_size=6))
@settings(max_examples=60, deadline=None)
def test_each_ask_gets_what_it_would_draw_alone(asks: list[Ask]) -> None:
    for one, found in zip(asks, draw_all(asks), strict=True):
        sharp = sharpen(one.logits, one.sampling)
        expected = draw(sharp, gumbel(one.seed, one.positions, VOCAB))
        np.testing.assert_array_equal(found.tokens, expected)
        chosen = np.arange(len(expected)), expected
        np.testing.assert_array_equal(found.probabilities, law(sharp)[chosen])
        assert len(found.laws) == (len(expected) if one.likeliest else 0)
        if one.likeliest:
            told = top_laws(one.positions, expected, one.logits, one.likeliest)
            for name in ("positions", "tokens", "codes", "log_probs"):
                np.testing.assert_array_equal(getattr(found.laws, name), getattr(told, name))


def test_a_code_at_the_edge_of_reach_may_win() -> None:
    # Of 2^22 numbers some are near the largest that there can be.
    noise = gumbel(3, np.arange(1 << 12), 1 << 10)
    position, code = np.unravel_index(noise.argmax(), noise.shape)
    logits = np.full((1, 1 << 10), -100, np.float32)
    other = int(noise[position, :code].argmin())
    logits[0, other], logits[0, code] = noise[position, code] - noise[position, other] - 0.001, 0
    one = Ask(Sampling(temperature=1.0, top_k=0, guidance=1.0), 3, np.array([position]), logits)

    assert draw_all([one])[0].tokens.tolist() == [code]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_single_numbers_are_those_of_the_rows(seed: int, position: int) -> None:
    codes = np.array([0, 1, 2, 3, 4, 33, 9])
    seeds, positions = np.full(7, seed, np.uint64), np.full(7, position)

    found = gumbel_at(seeds, positions, codes)

    np.testing.assert_array_equal(found, gumbel(seed, positions[:1], 40)[0, codes])
    assert (found >= np.float32(LEAST)).all()
    assert (found <= np.float32(GREATEST)).all()


def test_a_temperature_of_nothing_is_refused() -> None:
    one = Ask(Sharp(0.0), 1, np.array([0]), np.ones((1, 3), np.float32))
    with pytest.raises(InvalidInputError, match="temperature"):
        draw_all([one])
