"""A picture's noise is the same however it is made, and small however many codes there are."""

import numpy as np
import pytest

from fleet.decoding.noise import gumbel
from fleet.models.picture_noise import PictureNoise


@pytest.mark.parametrize(("positions", "codes"), [(16, 97), (40, 16_384), (256, 1_024)])
def test_noise_is_what_it_would_be_at_once(positions: int, codes: int) -> None:
    noise, whole = PictureNoise(7, positions, codes), gumbel(7, np.arange(positions), codes)

    for position in (0, positions - 1, 3, positions // 2, 3):
        np.testing.assert_array_equal(noise[position], whole[position])


def test_many_codes_take_a_few_blocks_only() -> None:
    noise = PictureNoise(7, 1024, 16_384)

    for position in range(0, 1024, 4):
        noise[position]

    assert noise.nbytes == 32 * 4 * 16_384 * 4
    np.testing.assert_array_equal(noise[5], gumbel(7, np.array([5]), 16_384)[0])


def test_a_block_holds_as_many_positions_as_its_numbers_allow() -> None:
    noise = PictureNoise(7, 256, 1024)
    noise[200]

    assert noise.nbytes == 64 * 1024 * 4
