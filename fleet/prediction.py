"""What one device step says about one position of a picture."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

ScoreName = Literal[
    "uncertainty", "rejection_bound", "entropy", "one_minus_max", "spread", "spread_bound"
]
# Scores that a device's graph gives, in the order of its output. Names are only ever appended: a
# bundle of before the last one gives those before it.
SCORE_NAMES: tuple[ScoreName, ...] = get_args(ScoreName)

# What a policy may compare: also the law under other temperatures, and a coin.
PolicyScore = Literal[ScoreName, "perturbation", "random"]
POLICY_SCORES: tuple[PolicyScore, ...] = (*SCORE_NAMES, "perturbation", "random")

FEATURE_SCALARS = 16  # numbers of the interval feature that describe the interval
FEATURE_SIZE = 48  # the scalars, then the projected hidden state


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """One drafted token with all that decides about it.

    Attributes:
        position: Index of the token in the picture.
        token: The draft, drawn with the position's shared noise.
        scores: In the order of `SCORE_NAMES`, as many as the bundle's graph gives; functions of
            the law, never of the draw.
        feature: [48], the interval feature before quantisation.
        hidden: [D], the device model's last hidden state.
        logits: [V], guided, before temperature and top-k; None where nobody asked for them.
        guided_hidden: [D], the hidden state that the guided logits are the center of: both
            branches' states, combined as their logits are; None where nobody asked for it.

    Raises:
        InvalidInputError: An array has another shape.
    """

    position: int
    token: int
    scores: NDArray[np.floating]
    feature: NDArray[np.floating]
    hidden: NDArray[np.floating]
    logits: NDArray[np.floating] | None = None
    guided_hidden: NDArray[np.floating] | None = None

    def __post_init__(self) -> None:
        fits = self.scores.ndim == 1 and 0 < len(self.scores) <= len(SCORE_NAMES)
        if not fits or self.feature.shape != (FEATURE_SIZE,):
            raise InvalidInputError(
                f"a prediction has up to {len(SCORE_NAMES)} scores and {FEATURE_SIZE} features,"
                f" not {self.scores.shape} and {self.feature.shape}"
            )

    def score(self, name: ScoreName) -> float:
        """The score called `name`; not a number where the bundle's graph does not give it."""
        index = SCORE_NAMES.index(name)
        return float(self.scores[index]) if index < len(self.scores) else math.nan
