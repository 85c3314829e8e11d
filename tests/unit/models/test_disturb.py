"""Wrong places in a history: where they come from, and how many there are."""

import numpy as np
from numpy.typing import NDArray

from fleet.training.disturb import LONGEST_RUN, MOST_SCATTERED, RUN_SHARE, disturb


def tokens(batch: int = 400, length: int = 64) -> NDArray[np.int64]:
    picture, position = np.arange(batch)[:, None], np.arange(length)
    return picture * 1000 + position


def test_undisturbed_pictures_keep_their_history() -> None:
    true = tokens()

    assert np.array_equal(disturb(true, 0.0, np.random.default_rng(1)), true)
    changed = (disturb(true, 0.25, np.random.default_rng(1)) != true).any(axis=1)
    assert 0.15 < changed.mean() < 0.3


def test_a_wrong_token_is_another_pictures_at_the_same_position() -> None:
    true = tokens()

    seen = disturb(true, 1.0, np.random.default_rng(2))

    wrong = seen != true
    assert np.array_equal(seen % 1000, true % 1000)
    assert np.array_equal(seen[wrong], np.roll(true, 1, axis=0)[wrong])
    # Scattered ones: half of the most on average. Runs: cut off where the picture ends.
    assert 0.1 < wrong.mean() < max(MOST_SCATTERED / 2, LONGEST_RUN / 2)


def test_runs_and_scattered_tokens_both_occur() -> None:
    wrong = disturb(tokens(), 1.0, np.random.default_rng(3)) != tokens()

    switches = (np.diff(wrong.astype(int), axis=1) != 0).sum(axis=1)
    assert abs((switches <= 2).mean() - RUN_SHARE) < 0.15
