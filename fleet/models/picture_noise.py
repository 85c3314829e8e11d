"""The noise of one picture, made as it is needed: all at once it is large where codes are many.

With 16,384 codes the noise of 256 tokens takes 17 MB and a third of a second (0.3 ms would do for
the first token). A block's numbers fit into a processor's second cache: blocks four times as large
take half as much again for each number (`simulations/LOG.md`).
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.noise import gumbel

_BLOCK_NUMBERS = 1 << 16
# A rollback goes back by the drafts that are under way at most; what is older is made again.
_KEPT = 32


class PictureNoise:
    """Gumbel noise [V] by position; positions of a block are made together."""

    def __init__(self, seed: int, positions: int, vocab_size: int) -> None:
        self._seed, self._positions, self._vocab_size = seed, positions, vocab_size
        self._length = min(positions, max(1, _BLOCK_NUMBERS // vocab_size))
        self._blocks: OrderedDict[int, NDArray[np.float32]] = OrderedDict()

    def __getitem__(self, position: int) -> NDArray[np.float32]:
        index, inside = divmod(position, self._length)
        if index not in self._blocks:
            first = index * self._length
            last = min(first + self._length, self._positions)
            self._blocks[index] = gumbel(self._seed, np.arange(first, last), self._vocab_size)
            if len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(index)
        row: NDArray[np.float32] = self._blocks[index][inside]
        return row

    @property
    def nbytes(self) -> int:
        """The memory that it takes now."""
        return sum(block.nbytes for block in self._blocks.values())
