"""Draws of many pictures at once: the tokens of `draw` with `gumbel`, without most of its noise."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.noise import GREATEST, LEAST, gumbel_at
from fleet.decoding.sampling import Sharpening, law, sharpen
from fleet.decoding.top_laws import NO_LAWS, TopLaws, top_laws

# A code whose logit is further below the largest wins by no noise; sums are rounded.
_REACH = np.float32(GREATEST - LEAST + 0.01)


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Asks for draws of one picture.

    Attributes:
        sampling: How its logits are sharpened.
        seed: Of its noise, within 64 bits.
        positions: Where; [k].
        logits: Before temperature and top-k, finite; [k, V].
        likeliest: So many codes of the laws there are asked for, too.
    """

    sampling: Sharpening
    seed: int
    positions: NDArray[np.int64]
    logits: NDArray[np.float32]
    likeliest: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Tokens [k], and their probabilities [k] under the sharpened law.

    With them the laws' likeliest codes, as far as these were asked for.
    """

    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    laws: TopLaws = NO_LAWS


def draw_all(asks: Sequence[Ask]) -> list[Drawn]:
    """What each ask alone would draw, to the bit.

    Raises:
        InvalidInputError: A temperature is not above 0.
    """
    alike: defaultdict[tuple[float, int, int, int], list[int]] = defaultdict(list)
    for index, ask in enumerate(asks):
        how = ask.sampling.temperature, ask.sampling.top_k
        alike[*how, ask.logits.shape[-1], ask.likeliest].append(index)
    found: dict[int, Drawn] = {}
    for indices in alike.values():
        own = [asks[index] for index in indices]
        found.update(zip(indices, _draw(own), strict=True))
    return [found[index] for index in range(len(asks))]


def _draw(asks: Sequence[Ask]) -> list[Drawn]:
    """Draws under one sampling: one call of each function for all of them."""
    counts = [len(ask.positions) for ask in asks]
    seeds = np.repeat(np.array([ask.seed for ask in asks], np.uint64), counts)
    positions = np.concatenate([ask.positions for ask in asks])
    logits = np.concatenate([ask.logits for ask in asks])
    sharp = sharpen(logits, asks[0].sampling)
    tokens = _tokens(sharp, seeds, positions)
    probabilities = law(sharp)[np.arange(len(tokens)), tokens]
    likeliest = asks[0].likeliest
    laws = top_laws(positions, tokens, logits, likeliest) if likeliest else None
    ends = np.cumsum(counts).tolist()
    parts = [slice(*pair) for pair in pairwise([0, *ends])]
    return [
        Drawn(tokens[part], probabilities[part], NO_LAWS if laws is None else laws.part(part))
        for part in parts
    ]


def _tokens(
    sharp: NDArray[np.floating], seeds: NDArray[np.uint64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The argmax [n] of sharpened logits [n, V] and noise, which only codes within reach need."""
    rows, codes = (sharp >= sharp.max(axis=-1, keepdims=True) - _REACH).nonzero()
    sums = sharp[rows, codes] + gumbel_at(seeds[rows], positions[rows], codes)
    first = np.searchsorted(rows, np.arange(len(sharp)))
    largest = np.maximum.reduceat(sums, first) if len(first) else sums
    (winners,) = (sums == largest[rows]).nonzero()
    tokens: NDArray[np.int64] = codes[
        winners[np.searchsorted(rows[winners], np.arange(len(sharp)))]
    ]
    return tokens
