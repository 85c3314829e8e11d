"""What one device step says about one position of a picture."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

ScoreName = Literal["uncertainty", "rejection_bound", "entropy", "one_minus_max", "spread"]

SCORE_NAMES: tuple[ScoreName, ...] = get_args(ScoreName)
FEATURE_SCALARS = 16  # numbers of the interval feature that describe the interval
FEATURE_SIZE = 48  # the scalars, then the projected hidden state


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """One drafted token with all that decides about it.

    Attributes:
        position: Index of the token in the picture.
        token: The draft, drawn with the position's shared noise.
        scores: [5], in the order of `SCORE_NAMES`; functions of the law, never of the draw.
        feature: [48], the interval feature before quantisation.
        hidden: [D], the device model's last hidden state.

    Raises:
        InvalidInputError: An array has another shape.
    """

    position: int
    token: int
    scores: NDArray[np.floating]
    feature: NDArray[np.floating]
    hidden: NDArray[np.floating]

    def __post_init__(self) -> None:
        if self.scores.shape != (len(SCORE_NAMES),) or self.feature.shape != (FEATURE_SIZE,):
            raise InvalidInputError(
                f"a prediction has {len(SCORE_NAMES)} scores and {FEATURE_SIZE} features,"
                f" not {self.scores.shape} and {self.feature.shape}"
            )

    def score(self, name: ScoreName) -> float:
        """The score called `name`."""
        return float(self.scores[SCORE_NAMES.index(name)])
