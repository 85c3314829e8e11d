"""The noise of one picture, in blocks: each number is the one that its row alone has."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.engine.luck import Luck
from fleet.decoding.noise import Stream, gumbel, uniform

POSITIONS = 70


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from([5, 700, 5000, 20000]),
    st.lists(st.lists(st.integers(0, POSITIONS - 1), min_size=1, max_size=3), max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_rows_are_those_of_the_noise_whatever_was_asked_before(
    seed: int, vocab_size: int, asked: list[list[int]]
) -> None:
    luck = Luck(seed, POSITIONS)

    for positions in asked:
        found = luck.noise(positions, vocab_size)

        np.testing.assert_array_equal(found, gumbel(seed, np.array(positions), vocab_size))


@pytest.mark.parametrize("vocab_size", [8, 1000, 16384])
def test_what_is_kept_of_a_long_picture_has_a_bound(vocab_size: int) -> None:
    luck = Luck(1, 4096)

    for position in range(0, 4096, 8):
        luck.noise([position], vocab_size)
        assert luck.kept <= max(1 << 17, 65 * vocab_size)


def test_what_is_checked_depends_on_the_position_only() -> None:
    luck, positions = Luck(7, POSITIONS), np.arange(POSITIONS)

    chosen = luck.chosen(positions, 0.3)

    expected = uniform(7, positions, 1, Stream.CHECK)[:, 0] < 0.3
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_array_equal(luck.chosen(positions[5:9], 0.3), expected[5:9])
