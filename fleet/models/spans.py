"""Spans of many pictures through one transformer, on a cache that is written in place.

A token's numbers stay the same to the bit whatever else is in the batch and however its picture
was cut into spans: see the two kinds of layers.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fleet.models.span_cache import KVCache, Places, Precision, Span, round_up
from fleet.models.span_torch import TorchLayers
from fleet.models.transformer import Transformer


class Layers(Protocol):
    """A transformer from embeddings to hidden states, and from these to logits."""

    @property
    def lanes(self) -> int:
        """Cells of keys that lie side by side in its cache."""

    @property
    def step(self) -> int:
        """What the number of tokens of a pass is padded to a multiple of."""

    def run(self, x: Tensor, cache: KVCache, spans: Sequence[Span], places: Places) -> Tensor:
        """Return hidden states [count, D] of embeddings x [N, D], which it may overwrite."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [N, V], fp32, of hidden states [N, D]."""


class SpanEngine:
    """A transformer that runs spans; it may move the weights in memory."""

    def __init__(
        self,
        transformer: Transformer,
        layers: Layers | None = None,
        *,
        precision: Precision = "fp16",
    ) -> None:
        """`layers`: those of the transformer, the fastest that give its numbers unless given.

        With `bf16` products round weights and what they are multiplied with; where the layers are
        torch's, the whole transformer is in bf16 then.
        """
        self.transformer = transformer.eval()
        self.config = transformer.config
        self._layers = layers or _fastest(transformer, precision)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.transformer.rotation.device

    def new_cache(self, rows: int) -> KVCache:
        """Return a cache for `rows` rows, all of its memory taken now."""
        return KVCache(self.transformer, rows, self._layers.lanes)

    @torch.inference_mode()
    def embed(self, spans: Sequence[Span], added: Tensor | None = None) -> Tensor:
        """Return the embeddings [M, D] of all spans' N tokens; `run` takes M >= N rows.

        Args:
            spans: At most one a row.
            added: [N, D], what is added to the token embeddings.
        """
        tokens = torch.from_numpy(np.concatenate([span.tokens for span in spans]))
        added = None if added is None else self._padded(added)
        return self.transformer.embed(self._padded(tokens).to(self.device), added)

    @torch.inference_mode()
    def run(self, cache: KVCache, spans: Sequence[Span], x: Tensor | None = None) -> Tensor:
        """Run all spans in one pass; hidden state i of a span predicts position start + i + 1.

        In torch, spans of rows equally far apart attend together, so pass them in row order.

        Args:
            cache: Receives the spans' keys and values.
            spans: At most one a row.
            x: What `embed` made of them, if not their tokens alone; overwritten.

        Returns:
            Hidden states [N, D] of all spans' tokens.
        """
        places = Places.of(cache, spans)
        x = self.embed(spans) if x is None else x
        if cache.sketch is not None:
            where = torch.from_numpy(places.rows * cache.places + places.positions)
            x[: len(where)].add_(cache.sketch.index_select(0, where.to(self.device)))
        return self._layers.run(x, cache, spans, places)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, V], fp32, of hidden states [N, D]."""
        return self._layers.logits(self._padded(hidden))[: len(hidden)]

    def _padded(self, rows: Tensor) -> Tensor:
        missing = round_up(len(rows), self._layers.step) - len(rows)
        return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def _fastest(transformer: Transformer, precision: Precision) -> Layers:
    """Compiled ones where numba is installed and they fit, else torch's."""
    if find_spec("numba") is not None:
        # Imported here: not everyone who trains has it.
        from fleet.models.span_compiled import CompiledLayers

        if compiled := CompiledLayers.of(transformer, precision):
            return compiled
    return TorchLayers(transformer.bfloat16() if precision == "bf16" else transformer)
