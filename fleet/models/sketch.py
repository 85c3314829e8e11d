"""What a caption alone says of every place of the image, as an addition to the token embeddings.

A caption's positions have keys of zero, so every image token gets the same of it, wherever it
stands: that the umbrella's handle is at the bottom would have to be worked out by each layer anew.
The sketch says it directly. It is computed once a caption and looked up by position.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.models.caption import PAD_ID


class CaptionSketch(nn.Module):
    """The words' sum makes a few vectors, which smooth maps of the grid spread over the image."""

    def __init__(self, n_word: int, slots: int, width: int, grid: int, dim: int) -> None:
        super().__init__()
        self.width = width
        self.word_embedding = nn.Embedding(n_word, 2 * width)
        self.fc1 = nn.Linear(2 * width, 4 * width)
        self.fc2 = nn.Linear(4 * width, slots * width)
        self.maps = nn.Parameter(cosine_maps(grid, slots))
        self.out = nn.Linear(width, dim)

    def forward(self, captions: Tensor, withheld: Tensor | None = None) -> Tensor:
        """Return the sketch [B, T, D]; place i is added to the embedding of token i.

        So place i says what the caption alone tells of token i + 1.

        Args:
            captions: Word ids [B, C], left-padded.
            withheld: [B], True where the caption is withheld: the sketch is zero there.
        """
        sketch = self.at(captions, slice(None))
        return sketch if withheld is None else sketch * ~withheld[:, None, None]

    def at(self, captions: Tensor, places: Tensor | slice) -> Tensor:
        """Return the sketch [B, P, D] at some places alone."""
        words = self.word_embedding(captions) * (captions != PAD_ID)[:, :, None]
        slots = self.fc2(F.gelu(self.fc1(words.sum(dim=1)))).unflatten(1, (-1, self.width))
        sketch: Tensor = self.out(F.gelu(self.maps[places] @ slots))
        return sketch

    def initialise(self) -> None:
        """Begin with words far apart and with smooth maps; what comes out is zero."""
        for layer in (self.fc1, self.fc2):
            layer.reset_parameters()
        nn.init.normal_(self.word_embedding.weight, std=0.3)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)


def cosine_maps(grid: int, count: int) -> Tensor:
    """Return the `count` slowest two-dimensional cosines [T, count] over a grid."""
    at = (torch.arange(grid) + 0.5) / grid
    waves = sorted((a * a + b * b, a, b) for a in range(grid) for b in range(grid))[:count]
    maps = [
        torch.outer(torch.cos(math.pi * a * at), torch.cos(math.pi * b * at)).flatten()
        for _, a, b in waves
    ]
    return torch.stack(maps, dim=1) * (2 / math.sqrt(count))
