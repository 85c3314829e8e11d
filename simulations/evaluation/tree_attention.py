"""Trees of drafts on top of the cache: every node sees the settled tokens and its own ancestors.

One pass over a whole tree gives what a pass over each path alone would give (Medusa,
arXiv:2401.10774; EAGLE-2, arXiv:2406.16858), and the nodes of one level can follow the levels
before them, as a drafter grows its tree.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.branches import Branches, Logits

Indices = NDArray[np.int64]
ROOT = -1  # the parent of a node that follows the settled tokens directly


class Nodes:
    """Trees of b of the pictures that a model is at work on; nothing of the pictures changes."""

    def __init__(self, branches: Branches, pictures: Indices) -> None:
        self._branches = branches
        rows = [pictures + branch * branches.count for branch in range(branches.branches)]
        self._rows = torch.from_numpy(np.concatenate(rows))
        self._past = slice(0, branches.lead + branches.position)
        self._keys = [keys[self._rows, :, self._past] for keys, _ in branches.cells]
        self._values = [values[self._rows, :, self._past] for _, values in branches.cells]
        self._seen = torch.zeros(len(pictures), 0, 0, dtype=torch.bool)  # [b, nodes, nodes]
        self._depth = np.zeros((len(pictures), 0), np.int64)

    @torch.inference_mode()
    def run(self, tokens: Indices, parents: Indices) -> Logits:
        """Add n nodes a picture, and return the guided logits [b, n, V] of what follows each.

        Args:
            tokens: [b, n].
            parents: [b, n], indices of earlier nodes in the order they were added, or `ROOT`.
                A node may follow another of the same call that stands before it.
        """
        count = self._depth.shape[1]
        self._extend(parents)
        model, repeats = self._branches.transformer, self._branches.branches
        ids = torch.from_numpy(tokens).repeat(repeats, 1)
        first = model.config.caption_length + self._branches.position
        depth = torch.from_numpy(self._depth[:, count:]).repeat(repeats, 1)
        x = self._embed(ids, depth)
        # Nodes beyond the picture's end are never reached: any position will do for them.
        places = (first + depth).clamp(max=len(model.rotation) - 1)
        turns = model.rotation[places]
        bias = self._bias(count)
        for layer, block in enumerate(model.blocks):
            q, k, v = block.project(x, turns)
            self._keys[layer] = torch.cat([self._keys[layer], k], dim=2)
            self._values[layer] = torch.cat([self._values[layer], v], dim=2)
            mixed = F.scaled_dot_product_attention(
                q, self._keys[layer], self._values[layer], attn_mask=bias
            )
            x = block.finish(x, mixed)
        return self._branches.guided(model.output(model.norm(x)))

    def _embed(self, ids: Tensor, depth: Tensor) -> Tensor:
        """Embed nodes [rows, n]; `depth` [rows, n] counts from the first that is not settled."""
        embedded: Tensor = self._branches.transformer.embed(ids)
        sketch = self._branches.sketch
        if sketch is None:
            return embedded
        places = (self._branches.position + depth).clamp(max=sketch.shape[1] - 1)
        return embedded + sketch[self._rows[:, None], places]

    def _extend(self, parents: Indices) -> None:
        """Depths and ancestors of the new nodes; a node is among its own ancestors."""
        size, count = self._depth.shape
        new = parents.shape[1]
        self._depth = np.pad(self._depth, ((0, 0), (0, new)))
        seen = np.zeros((size, count + new, count + new), bool)
        seen[:, :count, :count] = self._seen.numpy()
        pictures = np.arange(size)
        for index in range(count, count + new):
            parent = parents[:, index - count]
            has = parent != ROOT
            seen[has, index] = seen[pictures[has], parent[has]]
            self._depth[has, index] = self._depth[pictures[has], parent[has]] + 1
            seen[:, index, index] = True
        self._seen = torch.from_numpy(seen)

    def _bias(self, count: int) -> Tensor:
        """The attention's bias [rows, 1, new nodes, past + nodes]."""
        new = self._seen[:, count:]
        own = torch.zeros(new.shape).masked_fill_(~new, float("-inf"))
        own = own.repeat(self._branches.branches, 1, 1)[:, None]
        past = self._branches.bias[self._rows][..., self._past]
        return torch.cat([past.expand(-1, 1, own.shape[2], -1), own], dim=-1)
