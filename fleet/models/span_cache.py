"""Spans of pictures, where their tokens go, and the cache that they are written to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.conditions import Condition, Prompt
from fleet.models.transformer import Transformer

Precision = Literal["fp16", "bf16"]  # of weights in products

KEY_STEP = 32  # a row's cells are a multiple of it


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Tokens of one cache row that follow each other; the row must hold all tokens before.

    Attributes:
        row: The cache row.
        start: The picture position of the first token.
        tokens: [n], n >= 1.
        features: int8 [n, 48], zero where a token has none; None where no token has one.
    """

    row: int
    start: int
    tokens: NDArray[np.int64]
    features: NDArray[np.int8] | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)


class KVCache:
    """Keys and values of all rows, in the weights' precision.

    The first cells of a row are its condition's: one for a collapsed condition, whose key is 0,
    or those of a whole prompt. Those of the picture's positions follow. A row is rolled back by
    starting a span at an earlier position: later cells are never read.
    """

    def __init__(self, transformer: Transformer, rows: int, lanes: int) -> None:
        """`lanes` cells of keys lie side by side, as whoever attends reads them."""
        config, device = transformer.config, transformer.rotation.device
        self.rows, self.lead, self.places = rows, config.lead, config.n_token
        cells = round_up(self.lead + config.n_token, KEY_STEP)
        dtype = transformer.tok_embeddings.weight.dtype
        shape = (config.n_layer, rows, config.n_head)
        blocks = (*shape, cells // lanes, config.head_dim, lanes)
        # [L, rows, H, blocks, head_dim, lanes] and [L, rows, H, cells, head_dim]
        self.keys = torch.zeros(blocks, device=device, dtype=dtype)
        self.values = torch.zeros((*shape, cells, config.head_dim), device=device, dtype=dtype)
        # [rows * T, D], what the conditions add to the embeddings
        self.sketch: Tensor | None = None
        if transformer.sketch is not None:
            sketched = (rows * self.places, config.dim)
            self.sketch = torch.zeros(sketched, device=device, dtype=dtype)
        self.bias = np.zeros((rows, self.lead), np.float32)  # of the condition's keys
        self.offsets = np.full(rows, config.caption_length)  # rotation of position 0

    @property
    def nbytes(self) -> int:
        """The memory of all rows."""
        kept = self.keys.nbytes + self.values.nbytes
        return kept + (0 if self.sketch is None else self.sketch.nbytes)

    def begin(self, row: int, condition: Condition | Prompt, index: int) -> None:
        """Give a row the condition at `index` of a batch of conditions, and nothing else.

        What the last picture left is cleared: its cells are masked, but 0 · NaN is NaN.
        """
        keys, values = condition.cells[:, :, index].unbind(1)  # [L, H, C, head_dim]
        self.keys[:, row] = 0
        self.values[:, row] = 0
        lanes = self.keys.shape[-1]
        whole = F.pad(keys, (0, 0, 0, -self.lead % lanes)).unflatten(2, (-1, lanes))
        self.keys[:, row, :, : whole.shape[2]] = whole.transpose(-1, -2)
        self.values[:, row, :, : self.lead] = values
        self.bias[row] = condition.bias[index].float().cpu()
        if isinstance(condition, Prompt):
            self.offsets[row] = int(condition.lengths[index])
        elif self.sketch is not None and condition.sketch is not None:
            first = row * self.places
            self.sketch[first : first + self.places] = condition.sketch[index]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens [N] of some spans go, in the spans' order.

    Attributes:
        rows: Cache row.
        positions: In their picture.
        cells: Cache cell.
        turns: Place in the rotation table.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    cells: NDArray[np.int64]
    turns: NDArray[np.int64]

    @classmethod
    def of(cls, cache: KVCache, spans: Sequence[Span]) -> "Places":
        """Return the places of all spans' tokens."""
        counts = np.array([len(span.tokens) for span in spans])
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat([span.row for span in spans], counts)
        positions = np.repeat([span.start for span in spans], counts) + inside
        return cls(
            rows=rows,
            positions=positions,
            cells=cache.lead + positions,
            turns=cache.offsets[rows] + positions,
        )


def round_up(size: Any, step: int) -> Any:
    """Return the least multiple of `step` that is not below `size`."""
    return -(-size // step) * step
