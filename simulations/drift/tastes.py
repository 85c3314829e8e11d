"""What the devices of a fleet ask for, before their captions drift and after."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleet.errors import InvalidInputError
from fleet.models.caption import split_words
from fleet.training.pictures import Pictures

LEAST = 3  # captions of a taste in either half
_SHORTEST = 4  # letters of a word that is a theme
_FILLERS = frozenset({"with", "from"})
_SEEDS = 1_000_000  # of one device
_STARTS = (0, 1000, 500_000, 501_000)  # of the pictures of a kind among them


@dataclass(frozen=True, slots=True)
class Wishes:
    """Captions with their pictures' seeds."""

    captions: tuple[str, ...]
    seeds: tuple[int, ...]


def joined(several: Sequence[Wishes]) -> Wishes:
    """All of them, one after the other."""
    return Wishes(
        tuple(text for each in several for text in each.captions),
        tuple(seed for each in several for seed in each.seeds),
    )


@dataclass(frozen=True, slots=True)
class Taste:
    """What one device asks for: of everything before, of one style and theme after.

    `learned` and `measured` share no caption.
    """

    name: str  # "style: theme"
    learned_before: Wishes
    learned_after: Wishes
    measured_before: Wishes
    measured_after: Wishes


def tastes(pictures: Pictures, devices: int, learned: int, measured: int, seed: int) -> list[Taste]:
    """The tastes of so many devices, drawn from the training captions by their weights.

    A theme is a word that stands in several captions of a style. Half of the captions, by their
    hash, are learned from, the other half is measured on. How many are measured changes neither
    what is learned from nor the first of those that are measured.

    Raises:
        InvalidInputError: There are too few captions.
    """
    rows = pictures.rows("train")
    weight = {pictures.captions[row]: float(pictures.weight[row]) for row in rows}
    halves = [[text for text in weight if _half(text) == half] for half in (0, 1)]
    themes = _themes(halves, weight)
    if not themes:
        raise InvalidInputError(f"no style has a theme with {LEAST} captions in either half")
    found, styles = [], sorted(themes)
    for device in range(devices):
        style = styles[device % len(styles)]
        theme = themes[style][device % len(themes[style])]
        learning = np.random.default_rng((seed, device))
        rngs = [learning, learning, *(np.random.default_rng((seed, device, n)) for n in (2, 3))]
        own = [[text for text in half if theme in _words(text, style)] for half in halves]
        first = (1 + device) * _SEEDS
        pools = (halves[0], own[0], halves[1], own[1])
        counts = (learned, learned, measured, measured)
        wishes = [
            _draw(pool, weight, count, first + start, rng)
            for pool, count, start, rng in zip(pools, counts, _STARTS, rngs, strict=True)
        ]
        found.append(Taste(f"{style}: {theme}", *wishes))
    return found


def _themes(halves: list[list[str]], weight: dict[str, float]) -> dict[str, list[str]]:
    """By style the words with enough captions in both halves, the commonest first."""
    counts: list[Counter[tuple[str, str]]] = []
    shares: defaultdict[tuple[str, str], float] = defaultdict(float)
    for half in halves:
        counts.append(Counter())
        for text in half:
            style = text.partition(":")[0]
            for word in _words(text, style):
                counts[-1][style, word] += 1
                shares[style, word] += weight[text]
    found: dict[str, list[str]] = {}
    for style, word in sorted(shares, key=lambda each: (-shares[each], each)):
        if min(count[style, word] for count in counts) >= LEAST:
            found.setdefault(style, []).append(word)
    return found


def _words(text: str, style: str) -> set[str]:
    """The words of a caption's name that may be a theme, without what follows a comma."""
    own, _, name = text.partition(":")
    if own != style:
        return set()
    words = split_words(name.partition(",")[0])
    return {word for word in words if len(word) >= _SHORTEST and word not in _FILLERS}


def _draw(
    pool: Sequence[str], weight: dict[str, float], count: int, first: int, rng: np.random.Generator
) -> Wishes:
    weights = np.array([weight[text] for text in pool])
    chosen = rng.choice(len(pool), count, p=weights / weights.sum())
    return Wishes(tuple(pool[index] for index in chosen), tuple(range(first, first + count)))


def _half(text: str) -> int:
    return hashlib.sha256(text.encode()).digest()[0] & 1
