"""One model on many pictures in lock-step: every row at the same position, no padding, no plan.

The engine of the hub (`fleet/models/spans.py`) runs rows at any positions; here all rows stand at
one, so the cache is a plain tensor and a step is a few products. Under guidance a picture has two
rows: the first B with their captions, then the same B without.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.decoding.sampling import guide
from fleet.models.conditions import Condition, Prompt
from fleet.models.transformer import Transformer

Tokens = NDArray[np.int64]
Logits = NDArray[np.float32]


class Branches:
    """A model at work on B pictures.

    Attributes:
        cells: [L, 2 (keys, values), rows, H, C + T, head_dim]; the first C (one, or those of a
            prompt) are the caption's, cell C + p is that of position p.
        bias: [rows, 1, 1, C + T], of the attention: a collapsed caption's cell counts for all its
            words, and a prompt's padding for nothing.
        sketch: [rows, T, D], what the captions add to the embeddings, of a model that sketches.
        position: The position whose law `logits` gives.
    """

    def __init__(
        self, transformer: Transformer, condition: Condition | Prompt, guidance: float
    ) -> None:
        """Begin with conditions of 2B rows under guidance, those without captions last; else B."""
        config, rows, where = transformer.config, len(condition.start), condition.start.device
        self.transformer = transformer
        self.guidance = guidance
        self.count = rows // 2 if guidance > 1 else rows
        self.position = 0
        self.lead = config.lead
        shape = (config.n_layer, 2, rows, config.n_head, self.lead + config.n_token)
        with torch.inference_mode():
            kind = condition.start.dtype
            self.cells = torch.zeros((*shape, config.head_dim), dtype=kind, device=where)
            self.cells[..., : self.lead, :] = condition.cells
            self.bias = torch.zeros(rows, 1, 1, shape[-1], dtype=kind, device=where)
            self.bias[:, 0, 0, : self.lead] = condition.bias
        self._condition = condition
        self._hidden = condition.start  # [rows, D]
        self.sketch = condition.sketch if isinstance(condition, Condition) else None

    @classmethod
    @torch.inference_mode()
    def of_words(cls, transformer: Transformer, words: Tokens, guidance: float) -> "Branches":
        """Begin with captions as word ids [B, C], padded on the left."""
        branches = 2 if guidance > 1 else 1
        withheld = torch.arange(branches * len(words)) >= len(words)
        ids = torch.from_numpy(words).repeat(branches, 1)
        return cls(transformer, transformer.condition(ids, withheld), guidance)

    @property
    def branches(self) -> int:
        """Rows a picture."""
        return len(self._hidden) // self.count

    @property
    def hidden(self) -> Tensor:
        """The hidden states [B, D] of the branch with captions."""
        return self._hidden[: self.count]

    @property
    def guided_hidden(self) -> Logits:
        """What the output layer makes the guided logits of [B, D]."""
        return self.guided(self._hidden)

    @torch.inference_mode()
    def logits(self) -> Logits:
        """Guided logits [B, V] of the present position."""
        return self.guided(self.transformer.output(self._hidden))

    def guided(self, both: Tensor) -> Logits:
        """Guided values [b, ..., V] of those of all rows [branches * b, ..., V]."""
        values: Logits = both.float().cpu().numpy()
        half = len(values) // self.branches
        guided: Logits = guide(values[:half], values[-half:], self.guidance)
        return guided

    @torch.inference_mode()
    def push(self, tokens: Tokens, added: Tensor | None = None) -> None:
        """Go on by one token a picture [B], with `added` [B, D] on its embedding."""
        model, cell = self.transformer, self.lead + self.position
        ids = torch.from_numpy(tokens).to(self._hidden.device).repeat(self.branches)[:, None]
        more = None if added is None else added.repeat(self.branches, 1)[:, None]
        x = model.embed(ids, more)
        if self.sketch is not None:
            x = x + self.sketch[:, self.position, None]
        rotation = model.turns(self._condition, self.position, 1)
        bias = self.bias[..., : cell + 1]
        for block, (keys, values) in zip(model.blocks, self.cells, strict=True):
            q, k, v = block.project(x, rotation)
            keys[:, :, cell], values[:, :, cell] = k[:, :, 0], v[:, :, 0]
            mixed = F.scaled_dot_product_attention(
                q, keys[:, :, : cell + 1], values[:, :, : cell + 1], attn_mask=bias
            )
            x = block.finish(x, mixed)
        self._hidden = model.norm(x[:, 0])
        self.position += 1
