"""Histories that are wrong in places, so that a model learns to trust the caption over them.

A model that has only seen true histories recalls a picture it knows from the tokens above, hardly
from the caption: the first token that it draws amiss leads it away, and the caption does not lead
it back. Training at places where the history lies is what does.
"""

import numpy as np
from numpy.typing import NDArray

# Of the disturbed pictures: those with a run of wrong tokens, the others have scattered ones.
RUN_SHARE = 0.4
MOST_SCATTERED = 0.5
LONGEST_RUN = 0.6


def disturb(tokens: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return tokens [B, T] in which some are those of the next picture at the same position.

    Args:
        tokens: True codes of a batch; [B, T].
        share: Of the pictures, that are disturbed at all.
        rng: Decides which, where, and how much.
    """
    batch, length = tokens.shape
    disturbed = rng.random((batch, 1)) < share
    in_run = rng.random((batch, 1)) < RUN_SHARE
    scattered = rng.random((batch, length)) < rng.uniform(0, MOST_SCATTERED, (batch, 1))
    start = rng.integers(0, length, (batch, 1))
    end = start + rng.integers(1, int(LONGEST_RUN * length) + 1, (batch, 1))
    positions = np.arange(length)
    run = (positions >= start) & (positions < end)
    wrong = disturbed & np.where(in_run, run, scattered)
    return np.where(wrong, np.roll(tokens, 1, axis=0), tokens)
