"""What a picture is made from: a class, a caption's features or a prompt's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Condition:
    """A caption, collapsed to what decoding needs of it; exact, not an approximation."""

    value: Tensor  # [L, B, H, head_dim], mean of the valid caption positions' values
    log_n: Tensor  # [B], the log of their number: the virtual position's attention bias
    start: Tensor  # [B, D], output hidden state of the last caption position
    sketch: Tensor | None = None  # [B, T, D], added to the embeddings of the image's tokens

    @property
    def nbytes(self) -> int:
        """Return the memory that it takes."""
        sketched = 0 if self.sketch is None else self.sketch.nbytes
        return self.value.nbytes + self.start.nbytes + sketched

    @property
    def cells(self) -> Tensor:
        """Return what stands before the image's cells in a cache [L, 2, B, H, 1, head_dim]."""
        return torch.stack([torch.zeros_like(self.value), self.value], dim=1)[..., None, :]

    @property
    def bias(self) -> Tensor:
        """Return the attention bias of `cells` [B, 1]."""
        return self.log_n[:, None]

    def at(self, rows: Tensor) -> "Condition":
        """Return the conditions of some rows."""
        sketch = None if self.sketch is None else self.sketch[rows]
        return Condition(self.value[:, rows], self.log_n[rows], self.start[rows], sketch)


@dataclass(frozen=True)
class Prompt:
    """A prompt as the transformer saw it, padded on the left to C positions."""

    rows: Tensor  # [L, 2, B, H, C, head_dim], keys and values
    lengths: Tensor  # [B], how many of the last positions are tokens; padding is not counted
    start: Tensor  # [B, D], output hidden state of the last position

    @property
    def nbytes(self) -> int:
        """Return the memory that it takes."""
        return self.rows.nbytes + self.start.nbytes

    @property
    def cells(self) -> Tensor:
        """Return what stands before the image's cells in a cache [L, 2, B, H, C, head_dim]."""
        return self.rows

    @property
    def bias(self) -> Tensor:
        """Return the attention bias of `cells` [B, C]: padding is not seen."""
        return self.start.new_zeros(self.valid.shape).masked_fill(~self.valid, float("-inf"))

    @property
    def valid(self) -> Tensor:
        """Return which cells hold a token [B, C]."""
        cells = self.rows.shape[4]
        return torch.arange(cells, device=self.lengths.device) >= cells - self.lengths[:, None]

    def at(self, rows: Tensor) -> "Prompt":
        """Return the prompts of some rows."""
        return Prompt(self.rows[:, :, rows], self.lengths[rows], self.start[rows])


def joined(parts: Sequence[Condition | Prompt]) -> Condition | Prompt:
    """Return conditions of one kind and without sketches as one batch."""
    start = torch.cat([part.start for part in parts])
    collapsed = [part for part in parts if isinstance(part, Condition)]
    if collapsed:
        values = torch.cat([part.value for part in collapsed], dim=1)
        return Condition(values, torch.cat([part.log_n for part in collapsed]), start)
    prompts = [part for part in parts if isinstance(part, Prompt)]
    rows = torch.cat([part.rows for part in prompts], dim=2)
    return Prompt(rows, torch.cat([part.lengths for part in prompts]), start)


class CaptionProjection(nn.Module):
    """Two layers from caption features to the model's width."""

    def __init__(self, caption_dim: int, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(caption_dim, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return projected


class ClassEmbedding(nn.Module):
    """One vector a class; the last row stands for no class."""

    def __init__(self, n_class: int, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(n_class + 1, dim)

    def forward(self, classes: Tensor) -> Tensor:
        """Return the prefix [B, 1, D] of classes [B]; `n_class` is no class."""
        embedded: Tensor = self.embedding_table(classes)
        return embedded[:, None]


class CaptionEmbedding(nn.Module):
    """Caption features, of the words if there is a word table, and the features of no caption."""

    def __init__(self, dim: int, width: int, length: int, n_word: int) -> None:
        super().__init__()
        self.cap_proj = CaptionProjection(width, dim)
        self.uncond_embedding = nn.Parameter(torch.randn(length, width) / width**0.5)
        if n_word > 0:
            self.word_embedding = nn.Embedding(n_word, width)
            self.position_embedding = nn.Embedding(length, width)

    def features(self, captions: Tensor) -> Tensor:
        """Return the features [B, C, caption_dim] of left-padded word ids [B, C]."""
        features: Tensor = self.word_embedding(captions) + self.position_embedding.weight
        return features

    def forward(self, features: Tensor, unconditional: Tensor | None = None) -> Tensor:
        if unconditional is not None:  # [B], True where the caption is withheld
            chosen = unconditional[:, None, None]
            features = torch.where(chosen, self.uncond_embedding.type_as(features), features)
        projected: Tensor = self.cap_proj(features)
        return projected


class PromptEmbedding(nn.Module):
    """The embeddings of text tokens, where a prompt's tokens come before the image's in a row."""

    def __init__(self, n_word: int, dim: int) -> None:
        super().__init__()
        self.text_embeddings = nn.Embedding(n_word, dim)

    def forward(self, prompts: Tensor) -> Tensor:
        """Return embeddings [B, C, D] of text tokens [B, C]."""
        embedded: Tensor = self.text_embeddings(prompts)
        return embedded
