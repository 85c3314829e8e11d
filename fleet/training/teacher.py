"""The cloud's laws on the training pictures, kept once computed so that epochs are cheap."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.transformer import Transformer
from fleet.training.disturb import disturb
from fleet.training.examples import Batch, Examples

# Seed of the places that are wrong, so that a run that goes on has the same.
_DISTURBANCE = 19


class Teacher:
    """Laws of a frozen cloud model at guidance 1, given what training pictures hold.

    The share `disturbed` of the pictures is wrong in places, always the same ones: a device that
    drafts goes on from what it drew amiss. Validation pictures are as they are.

    Hidden states of pictures seen before are kept in half precision (about 1.4 GB for the shipped
    family); a law is one product with the output matrix away from them.
    """

    def __init__(self, cloud: Transformer, examples: Examples, disturbed: float = 0.0) -> None:
        self._cloud = cloud.eval()
        self._examples = examples
        count, _, length = examples.tokens.shape
        self._hidden = torch.empty(count, length, cloud.config.dim, dtype=torch.float16)
        self._known = np.zeros(count, dtype=bool)
        self._rows = examples.pictures.rows("train")
        self._tokens = examples.tokens[:, 0].astype(np.int64)
        rng = np.random.default_rng(_DISTURBANCE)
        mixed = rng.permutation(self._rows)
        self._tokens[mixed] = disturb(self._tokens[mixed], disturbed, rng)
        weight = examples.pictures.weight[self._rows].astype(np.float64)
        self._weight = weight / weight.sum()

    def rows(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw training pictures by weight."""
        return rng.choice(self._rows, size, p=self._weight)

    @torch.no_grad()
    def laws(
        self, rows: NDArray[np.int64], withheld: Tensor, positions: Tensor
    ) -> tuple[Batch, Tensor]:
        """Return pictures by row, and the cloud's laws [B, P, V] at P positions.

        The laws are those without caption where `withheld` [B] is true.
        """
        batch = self._batch(rows)
        hidden = torch.empty(len(rows), batch.tokens.shape[1], self._cloud.config.dim)
        fresh = withheld.numpy() | ~self._known[rows]
        if fresh.any():
            part = torch.from_numpy(fresh)
            hidden[part] = self._cloud.hidden(
                batch.tokens[part, :-1], batch.captions[part], withheld[part]
            )
            keep = fresh & ~withheld.numpy()
            self._hidden[rows[keep]] = hidden[torch.from_numpy(keep)].half()
            self._known[rows[keep]] = True
        old = torch.from_numpy(~fresh)
        hidden[old] = self._hidden[rows[~fresh]].float()
        return batch, self._cloud.output(hidden[:, positions]).softmax(dim=-1)

    @torch.no_grad()
    def validation(self, count: int) -> Iterator[tuple[Batch, Tensor]]:
        """Yield validation pictures in batches, with the cloud's laws [B, T, V]."""
        rows = self._examples.pictures.rows("validation")
        rows = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]
        for part in np.array_split(rows, max(len(rows) // 32, 1)):
            everywhere = torch.arange(self._tokens.shape[1])
            yield self.laws(part, torch.zeros(len(part), dtype=torch.bool), everywhere)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        return Batch(
            torch.from_numpy(self._tokens[rows]), torch.from_numpy(self._examples.captions[rows])
        )
