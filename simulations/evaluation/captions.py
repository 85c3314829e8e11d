"""Which captions are drawn, with which seeds, and which real pictures they are held against."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.training.pictures import Pictures

SEEDS = 3  # independent groups of seeds; the spread of every figure is that over the groups
_SEARCH_KEY, _TEST_KEY = 11, 12


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Captions to draw; picture i has caption i, seed i and group i mod `group_count`."""

    rows: NDArray[np.int64]  # [N], of the data set: the captions' own real pictures
    captions: list[str]
    held_out: NDArray[np.bool_]  # [N], whether training saw no style of the emoji
    group_count: int = SEEDS

    @property
    def groups(self) -> NDArray[np.int64]:
        """The group of each picture [N]."""
        return np.arange(len(self.rows)) % self.group_count

    @property
    def seeds(self) -> list[int]:
        """The seed of each picture: no two methods differ in it, no two groups share a block."""
        count = self.group_count
        return [1_000_000 * (1 + index % count) + index for index in range(len(self.rows))]


def chosen_captions(pictures: Pictures, count: int, group_count: int = SEEDS) -> Assignment:
    """`count` distinct captions: those of the test split, filled up with training captions.

    Both are drawn by the data set's weights (an emoji with skin tones counts once), without
    replacement. At most a quarter comes from the test split, which keeps its tones rare.
    """
    rng = np.random.default_rng(_TEST_KEY)
    held_out = _choose(pictures, "test", count // 4, rng)
    known = _choose(pictures, "train", count - len(held_out), rng)
    return _assign(pictures, np.concatenate([held_out, known]), rng, group_count)


def search_captions(pictures: Pictures, count: int, avoid: Assignment) -> Assignment:
    """`count` captions for choosing settings, as those of `avoid` and none of them.

    The share of emoji that training saw in no style is the same, since the cloud is asked about
    half as many tokens again there; here they are of the validation split.
    """
    rng = np.random.default_rng(_SEARCH_KEY)
    share = float(avoid.held_out.mean())
    held_out = _choose(pictures, "validation", round(share * count), rng)
    known = _choose(pictures, "train", count - len(held_out), rng, avoid.rows)
    return _assign(pictures, np.concatenate([held_out, known]), rng)


def _choose(
    pictures: Pictures,
    split: str,
    count: int,
    rng: np.random.Generator,
    avoid: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    rows = pictures.rows(split)
    if avoid is not None:
        rows = np.setdiff1d(rows, avoid)
    weight = pictures.weight[rows].astype(np.float64)
    return rng.choice(rows, min(count, len(rows)), replace=False, p=weight / weight.sum())


def _assign(
    pictures: Pictures,
    rows: NDArray[np.int64],
    rng: np.random.Generator,
    group_count: int = SEEDS,
) -> Assignment:
    # Shuffled, so that every chunk and every group is a fair sample.
    mixed = rng.permutation(rows)
    captions = [pictures.captions[row] for row in mixed]
    train = np.isin(mixed, pictures.rows("train"))
    return Assignment(mixed, captions, np.logical_not(train), group_count)
