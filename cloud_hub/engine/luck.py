"""The shared noise of one picture as the engine asks for it: a few rows, often neighbours.

A call of `gumbel` for one row takes as long as for some ten thousand numbers, so rows come in
blocks of so many numbers; the blocks used last are kept, and each number is the one that a call
for its row alone would give.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_hub.engine.requests import Logits, Mask, Tokens
from fleet.decoding.noise import Stream, gumbel, uniform

_NUMBERS = 1 << 14  # of a block
_NUMBERS_KEPT, _ROWS_KEPT = 1 << 16, 64  # at least; the larger of the two


class Luck:
    """What chance says about the `positions` of the picture with this seed."""

    __slots__ = ("_blocks", "_checks", "_positions", "_seed")

    def __init__(self, seed: int, positions: int) -> None:
        self._seed = seed
        self._positions = positions
        self._blocks: dict[int, Logits] = {}  # the one that was made first comes first
        self._checks: NDArray[np.float64] | None = None

    @property
    def kept(self) -> int:
        """How many numbers are kept."""
        return sum(block.size for block in self._blocks.values())

    def noise(self, positions: Sequence[int], vocab_size: int) -> Logits:
        """The Gumbel noise [k, V] of the positions [k]; always of the same V."""
        rows = max(_NUMBERS // vocab_size, 1)
        found = np.array([self._block(p // rows, rows, vocab_size)[p % rows] for p in positions])
        while len(self._blocks) * rows > max(_NUMBERS_KEPT // vocab_size, _ROWS_KEPT, rows):
            del self._blocks[next(iter(self._blocks))]
        return found

    def chosen(self, positions: Tokens, share: float) -> Mask:
        """Which of the positions [k] are among the share that is checked, or taught."""
        if self._checks is None:
            self._checks = uniform(self._seed, np.arange(self._positions), 1, Stream.CHECK)[:, 0]
        return self._checks[positions] < share

    def _block(self, index: int, rows: int, vocab_size: int) -> Logits:
        block = self._blocks.get(index)
        if block is None:
            positions = np.arange(index * rows, min((index + 1) * rows, self._positions))
            block = self._blocks[index] = gumbel(self._seed, positions, vocab_size)
        return block
