"""Codes that cost few bits: entropy-constrained quantisation (Chou, Lookabaugh and Gray, 1989).

In a flat region the nearest code changes from cell to cell by a noise that no eye sees and no token
model can foresee. A code that its neighbours or many pictures have costs fewer bits; it is taken
in place of the nearest one where it is hardly farther away.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fleet.models.image_tokenizer import ImageTokenizer

# The squared distance that a saved bit may cost.
DISTANCE_PER_BIT = 0.015
# The probability that a code is the left or the upper one; the others follow the codes' shares.
COPY = 0.4
_ROUNDS = 3
_BATCH = 64


@dataclass(frozen=True)
class CodeLaw:
    """How often each code occurs; with COPY it prices a code in bits."""

    shares: Tensor  # [V], positive, sums to 1

    def bits(self, ids: Tensor, copied: Tensor) -> Tensor:
        """Return the bits of codes, where the share `copied` of their neighbours is equal."""
        return -(COPY * copied + (1 - COPY) * self.shares[ids]).log2()


def fit_law(tokenizer: ImageTokenizer, pictures: Tensor) -> CodeLaw:
    """Return the law that the economical codes of pictures [B, 3, H, W] themselves follow."""
    with torch.no_grad():
        features = torch.cat([tokenizer.features(part) for part in pictures.split(_BATCH)])
        law = _law_of(tokenizer.quantize.nearest(features), tokenizer.config.codebook_size)
        for _ in range(_ROUNDS):
            parts = features.split(_BATCH)
            ids = torch.cat([economical(tokenizer.quantize.codes, part, law) for part in parts])
            law = _law_of(ids, tokenizer.config.codebook_size)
    return law


@dataclass(frozen=True)
class CodeFigures:
    """What codes are like, on the pictures that a law was fitted to."""

    entropy: float  # bits a code, of its share alone
    as_left: float  # share of codes that equal their left neighbour
    in_use: int  # codes with more than one in a hundred thousand of all places
    psnr_db: float  # of the decoded pictures

    def __str__(self) -> str:
        return (
            f"{self.entropy:.2f} bits, {self.as_left:.0%} as the left one, "
            f"{self.in_use} codes in use, {self.psnr_db:.1f} dB"
        )


def code_figures(tokenizer: ImageTokenizer, pictures: Tensor, ids: Tensor) -> CodeFigures:
    """Return the figures of ids [B, h*w] that stand for pictures [B, 3, H, W]."""
    counts = torch.bincount(ids.flatten(), minlength=tokenizer.config.codebook_size).double()
    shares = counts / counts.sum()
    side = round(ids.shape[1] ** 0.5)
    grid = ids.view(-1, side, side)
    with torch.no_grad():
        decoded = torch.cat([tokenizer.decode(part) for part in ids.split(_BATCH)])
    error = (decoded - pictures.clamp(-1, 1)).square().mean()
    return CodeFigures(
        entropy=float(torch.special.entr(shares).sum() / math.log(2)),
        as_left=float((grid[:, :, 1:] == grid[:, :, :-1]).double().mean()),
        in_use=int((shares > 1e-5).sum()),
        psnr_db=float(10 * (4 / error).log10()),
    )


def encode_economically(tokenizer: ImageTokenizer, pictures: Tensor, law: CodeLaw) -> Tensor:
    """Return code ids [B, h*w] of pictures [B, 3, H, W], near the nearest and cheap in bits."""
    with torch.no_grad():
        features = tokenizer.features(pictures)
        return economical(tokenizer.quantize.codes, features, law).flatten(1)


def economical(codes: Tensor, features: Tensor, law: CodeLaw) -> Tensor:
    """Return ids [B, h, w] for unit features [B, D, h, w] and codes [V, D], in reading order."""
    distance = 2 - 2 * features.permute(0, 2, 3, 1) @ codes.T  # [B, h, w, V]
    every = torch.arange(len(codes))
    alone = distance + DISTANCE_PER_BIT * law.bits(every, torch.zeros(len(codes)))
    price, ids = alone.min(dim=-1)
    height, width = ids.shape[1:]
    for row in range(height):
        for column in range(width):
            here = (slice(None), row, column)
            neighbours = [ids[:, row, column - 1]] if column else []
            neighbours += [ids[:, row - 1, column]] if row else []
            for code in neighbours:
                alike = torch.stack([other == code for other in neighbours]).float().mean(dim=0)
                far = distance[here].gather(1, code[:, None])[:, 0]
                cost = far + DISTANCE_PER_BIT * law.bits(code, alike)
                cheaper = cost < price[here]
                price[here] = torch.where(cheaper, cost, price[here])
                ids[here] = torch.where(cheaper, code, ids[here])
    return ids


def _law_of(ids: Tensor, size: int) -> CodeLaw:
    counts = torch.bincount(ids.flatten(), minlength=size).float() + 0.1
    return CodeLaw(counts / counts.sum())
