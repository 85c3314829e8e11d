"""What the token models learn from: code ids of pictures, with their captions as word ids."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.errors import FleetError
from fleet.models.caption import PAD_ID, UNKNOWN_ID, CaptionVocabulary, pad_left
from fleet.models.image_tokenizer import ImageTokenizer, to_unit
from fleet.training.budget import Bar
from fleet.training.economy import CodeFigures, code_figures, encode_economically, fit_law
from fleet.training.pictures import Pictures, load_pictures

VARIANTS = 4
WORD_DROPOUT = 0.02
# Only whole families get variants: skin tones are variants of each other already.
_LEAST_WEIGHT = 0.5
_ENCODE_BATCH = 64
_LAW_PICTURES = 1024


@dataclass(frozen=True)
class Batch:
    """Token ids [B, T] and left-padded caption word ids [B, C]."""

    tokens: Tensor
    captions: Tensor


@dataclass(frozen=True)
class Examples:
    """All encoded pictures; variant 0 is the picture itself."""

    tokens: NDArray[np.uint16]  # [N, VARIANTS, T]
    captions: NDArray[np.int64]  # [N, C]
    pictures: Pictures
    vocabulary: CaptionVocabulary

    @property
    def n_word(self) -> int:
        """Return the size of the caption vocabulary."""
        return len(self.vocabulary)

    def draw(self, size: int, rng: np.random.Generator, *, varied: bool = True) -> Batch:
        """Draw training pictures by weight, with a word replaced by the unknown word now and then.

        With `varied` any variant of a picture is drawn, without it the picture itself.
        """
        rows = self.pictures.rows("train")
        weight = self.pictures.weight[rows].astype(np.float64)
        chosen = rng.choice(rows, size, p=weight / weight.sum())
        captions = self.captions[chosen]
        dropped = (rng.random(captions.shape) < WORD_DROPOUT) & (captions != PAD_ID)
        captions = np.where(dropped, UNKNOWN_ID, captions)
        variants = rng.integers(0, VARIANTS, size) * varied
        return _batch(self.tokens[chosen, variants], captions)

    def sample(self, split: str, count: int, rng: np.random.Generator) -> Batch:
        """Draw up to `count` different pictures of a split by weight, as they are."""
        rows = self.pictures.rows(split)
        weight = self.pictures.weight[rows].astype(np.float64)
        chosen = rng.choice(rows, min(count, len(rows)), replace=False, p=weight / weight.sum())
        return _batch(self.tokens[chosen, 0], self.captions[chosen])

    def take(self, split: str, count: int) -> Batch:
        """Return up to `count` pictures of a split, evenly spread, without augmentation."""
        rows = self.pictures.rows(split)
        rows = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]
        return _batch(self.tokens[rows, 0], self.captions[rows])


def encode_pictures(work: Path, tokenizer: ImageTokenizer, bar: Bar) -> dict[str, CodeFigures]:
    """Write `tokens.npz` in `work`: the code ids of every picture and of its variants.

    Returns figures of the nearest codes and of those written, on the pictures of the codes' law.
    """
    pictures = load_pictures(work)
    count = len(pictures.captions)
    tokens = np.zeros((count, VARIANTS, _tokens_of(tokenizer, pictures)), dtype=np.uint16)
    whole = np.flatnonzero(pictures.weight >= _LEAST_WEIGHT)
    sample = sample_of_law(pictures)
    law = fit_law(tokenizer, sample)
    for variant in range(VARIANTS):
        rows = np.arange(count) if variant == 0 else whole
        tokens[:, variant] = tokens[:, 0]
        rng = np.random.default_rng(variant)
        for start in range(0, len(rows), _ENCODE_BATCH):
            part = rows[start : start + _ENCODE_BATCH]
            batch = _vary(to_unit(torch.from_numpy(pictures.pixels[part])), variant, rng)
            ids = encode_economically(tokenizer, batch, law)
            tokens[part, variant] = ids.numpy().astype(np.uint16)
            bar.show((variant + start / len(rows)) / VARIANTS, f"variant {variant}")
    partial = work / "tokens.partial.npz"
    np.savez(partial, tokens=tokens)
    partial.replace(work / "tokens.npz")
    with torch.no_grad():
        nearest = torch.cat([tokenizer.encode(part) for part in sample.split(_ENCODE_BATCH)])
    cheap = [encode_economically(tokenizer, part, law) for part in sample.split(_ENCODE_BATCH)]
    return {
        "nearest": code_figures(tokenizer, sample, nearest),
        "written": code_figures(tokenizer, sample, torch.cat(cheap)),
    }


def sample_of_law(pictures: Pictures) -> Tensor:
    """Return what the law of codes is fitted to: whole families, evenly spread, in [-1, 1]."""
    rows = pictures.rows("train")
    rows = rows[pictures.weight[rows] >= _LEAST_WEIGHT]
    rows = rows[np.linspace(0, len(rows) - 1, min(_LAW_PICTURES, len(rows))).astype(int)]
    return to_unit(torch.from_numpy(pictures.pixels[rows]))


def load_examples(work: Path) -> Examples:
    """Read the encoded pictures."""
    if not (work / "tokens.npz").exists():
        raise FleetError(f"no tokens in {work}: run the encode step first")
    pictures = load_pictures(work)
    vocabulary = CaptionVocabulary.load(work / "vocabulary.json")
    captions = [pad_left(vocabulary.encode_leniently(caption)) for caption in pictures.captions]
    with np.load(work / "tokens.npz") as arrays:
        return Examples(arrays["tokens"], np.array(captions), pictures, vocabulary)


def _tokens_of(tokenizer: ImageTokenizer, pictures: Pictures) -> int:
    return int((pictures.pixels.shape[1] // tokenizer.config.downsampling) ** 2)


def _batch(tokens: NDArray[np.uint16], captions: NDArray[np.int64]) -> Batch:
    return Batch(torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(captions))


def _vary(batch: Tensor, variant: int, rng: np.random.Generator) -> Tensor:
    """Shift pictures by whole pixels (variants 1 and 2) or shrink them a little (variant 3)."""
    if variant == 0:
        return batch
    if variant < 3:
        return torch.stack([_shift(picture, rng.integers(-3, 4, 2)) for picture in batch])
    scale = torch.from_numpy(rng.uniform(1.03, 1.15, len(batch))).float()
    offset = torch.from_numpy(rng.uniform(-0.06, 0.06, (len(batch), 2))).float()
    matrices = torch.cat([torch.diag_embed(scale[:, None].expand(-1, 2)), offset[:, :, None]], 2)
    grid = F.affine_grid(matrices, list(batch.shape), align_corners=False)
    # Outside the picture is white, which is 1: sample the distance from white.
    return F.grid_sample(batch - 1, grid, align_corners=False) + 1


def _shift(picture: Tensor, by: NDArray[np.int64]) -> Tensor:
    down, right = (int(value) for value in by)
    padded = F.pad(picture, (3, 3, 3, 3), value=1.0)
    height, width = picture.shape[1:]
    return padded[:, 3 - down : 3 - down + height, 3 - right : 3 - right + width]
