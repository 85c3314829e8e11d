"""The cloud's law along one picture, token by token, with the kernels of the hub's engine.

The engine's products have shapes at which a number is the same to the bit in any batch, so a
picture drawn alone here is the hub's token for token.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.decoding.sampling import guide
from fleet.models.span_cache import Span
from fleet.models.spans import SpanEngine

Tokens = NDArray[np.int64]


class Teacher:
    """A model on one picture; two rows under guidance."""

    def __init__(self, engine: SpanEngine, words: Tokens, guidance: float) -> None:
        self._engine = engine
        self._guidance = guidance
        withheld = torch.arange(2 if guidance > 1 else 1) >= 1
        with torch.inference_mode():
            rows = torch.from_numpy(words).repeat(len(withheld), 1)
            condition = engine.transformer.condition(rows, withheld)
            self._cache = engine.new_cache(len(withheld))
            for row in range(len(withheld)):
                self._cache.begin(row, condition, row)
        self._hidden = condition.start
        self._position = 0

    def logits(self) -> NDArray[np.float32]:
        """Guided logits [V] of the present position."""
        with torch.inference_mode():
            both = self._engine.logits(self._hidden).numpy()
        guided: NDArray[np.float32] = guide(both[:1], both[-1:], self._guidance)
        first: NDArray[np.float32] = guided[0]
        return first

    def push(self, token: Tokens, added: Tensor | None = None) -> None:
        """Go on by one token [1], with `added` [1, D] on its embedding."""
        branches = len(self._hidden)
        spans = [Span(row, self._position, token) for row in range(branches)]
        repeated = None if added is None else added.repeat(branches, 1)
        self._hidden = self._engine.run(self._cache, spans, self._engine.embed(spans, repeated))
        self._position += 1
