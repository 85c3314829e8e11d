"""What an interval feature is trained on: histories, and what both models make of them.

Where the histories come from differs (pictures for the reference family, drawings of its own for a
cloud model in somebody's files), and what a device sees of a caption; the adapter need not know.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.checkpoint import DeviceParts
from fleet.models.conditions import Condition, Prompt
from fleet.models.drafter import Drafter, Start
from fleet.models.linked import LinkedModel
from fleet.models.transformer import Transformer
from fleet.training.drawings import Drawings, joint_conditions
from fleet.training.examples import Batch, Examples


@dataclass(frozen=True)
class History:
    """Whole pictures, as cloud and device know them.

    Attributes:
        tokens: [B, T].
        condition: Of the cloud, 2B rows: the B captions, then each of them withheld.
        states: Of the device [B or 2B, T, D], in the same order; the second half under guidance.
    """

    tokens: Tensor
    condition: Condition | Prompt
    states: Tensor


class Source(Protocol):
    """Where histories come from."""

    def draw(self, size: int, rng: np.random.Generator) -> History:
        """Draw histories to learn from."""
        ...

    def validation(self, size: int, count: int) -> list[History]:
        """Return up to `count` histories that nothing learned from, `size` at a time."""
        ...


@dataclass(frozen=True)
class PictureHistories:
    """Those of pictures with captions of words, for the reference family."""

    cloud: Transformer
    device: DeviceParts
    examples: Examples
    guided: bool

    def draw(self, size: int, rng: np.random.Generator) -> History:
        """See `Source`."""
        return self.of(self.examples.draw(size, rng, varied=False))

    def validation(self, size: int, count: int) -> list[History]:
        """See `Source`."""
        batch = self.examples.take("validation", count)
        parts = zip(batch.tokens.split(size), batch.captions.split(size), strict=True)
        return [self.of(Batch(tokens, captions)) for tokens, captions in parts]

    @torch.no_grad()
    def of(self, batch: Batch) -> History:
        """Return the histories of a batch."""
        count = len(batch.tokens)
        words, withheld = batch.captions.repeat(2, 1), torch.arange(2 * count) >= count
        rows = slice(0, 2 * count if self.guided else count)
        device = self.device.transformer
        tokens = batch.tokens[:, :-1].repeat(2, 1)[rows]
        states = device.hidden_after(device.condition(words[rows], withheld[rows]), tokens)
        return History(batch.tokens, self.cloud.condition(words, withheld), states)


@dataclass(frozen=True)
class DrawnHistories:
    """A linked cloud model's own drawings, seen by its drafter on states of its own."""

    cloud: LinkedModel
    drafter: Drafter
    drawings: Drawings
    guided: bool

    def draw(self, size: int, rng: np.random.Generator) -> History:
        """See `Source`."""
        return self.of(rng.choice(self.drawings.rows("train"), size))

    def validation(self, size: int, count: int) -> list[History]:
        """See `Source`."""
        rows = self.drawings.rows("validation")
        rows = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]
        return [self.of(rows[first : first + size]) for first in range(0, len(rows), size)]

    @torch.no_grad()
    def of(self, rows: NDArray[np.int64]) -> History:
        """Return the histories of some drawings."""
        where, count = self.cloud.engine.device, len(rows)
        captions = [self.drawings.captions[row] for row in rows]
        condition = joint_conditions(self.cloud, captions)
        tokens = torch.from_numpy(self.drawings.tokens[rows]).to(where)
        seen = torch.arange(2 * count if self.guided else count, device=where)
        states = self.drafter.all_states(tokens.repeat(2, 1)[seen], Start.of(condition.at(seen)))
        return History(tokens, condition, states)
