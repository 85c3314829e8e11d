"""What is checked of a picture is chosen by its noise."""

import numpy as np

from cloud_hub.engine.luck import Luck
from fleet.decoding.noise import Stream, uniform

POSITIONS = 70


def test_what_is_checked_depends_on_the_position_only() -> None:
    luck, positions = Luck(7, POSITIONS), np.arange(POSITIONS)

    chosen = luck.chosen(positions, 0.3)

    expected = uniform(7, positions, 1, Stream.CHECK)[:, 0] < 0.3
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_array_equal(luck.chosen(positions[5:9], 0.3), expected[5:9])
