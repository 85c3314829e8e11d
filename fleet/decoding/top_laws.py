"""What the cloud tells a device of its own law at some positions, so that the device may learn."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class TopLaws:
    """The cloud's draws at k positions, and the likeliest codes of its laws there.

    Attributes:
        positions: [k], of the picture.
        tokens: [k], what the cloud draws there with the picture's noise.
        codes: [k, K], the likeliest first.
        log_probs: [k, K], in half precision, of the law at temperature 1 without a cut.
    """

    positions: NDArray[np.int64]
    tokens: NDArray[np.int64]
    codes: NDArray[np.int64]
    log_probs: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, rows: slice) -> "TopLaws":
        """Those at some of the positions."""
        return TopLaws(
            self.positions[rows], self.tokens[rows], self.codes[rows], self.log_probs[rows]
        )


NO_LAWS = TopLaws(
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
    np.zeros((0, 0), np.int64),
    np.zeros((0, 0), np.float16),
)


def top_laws(
    positions: NDArray[np.int64], tokens: NDArray[np.int64], logits: Floats, size: int
) -> TopLaws:
    """The `size` likeliest codes of the laws with logits [k, V], or all V of them."""
    wide = logits.astype(np.float64)
    size = min(size, wide.shape[-1])
    codes = np.argpartition(-wide, size - 1, axis=-1)[:, :size]
    order = np.argsort(-np.take_along_axis(wide, codes, axis=-1), axis=-1, kind="stable")
    codes = np.take_along_axis(codes, order, axis=-1)
    wide -= wide.max(axis=-1, keepdims=True)
    log_law = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    found = np.take_along_axis(log_law, codes, axis=-1).astype(np.float16)
    return TopLaws(positions, tokens, codes, found)
