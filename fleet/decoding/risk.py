"""The largest threshold whose risk is proven small: learn-then-test on checked pictures.

Risk R(τ) = E[ mean over a picture's tokens of loss · 1[score <= τ] ], a loss of 0 to 1 for what a
token does when it stays local. Thresholds are tried upwards; each is kept while the hypothesis
"R(τ) > ε" can be rejected at level δ, and the first one that cannot ends the search (fixed
sequence testing). Then P(R(τ) <= ε for the one returned) >= 1 - δ for any number of pictures
(Angelopoulos et al., "Learn then Test", arXiv:2110.01052, theorem 1), if the pictures are
independent draws of those that the threshold will be used on. A picture is one draw; its tokens
are not independent of each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """What is known of one picture's tokens.

    Attributes:
        scores: Of the checked tokens; [n]. A score that is not finite never stays local.
        losses: Between 0 and 1; [n].
        weights: Which share of the picture's tokens each of them stands for; [n], at most 1 in
            all.

    Raises:
        InvalidInputError: Shapes differ, or a number is out of range.
    """

    scores: Floats
    losses: Floats
    weights: Floats

    def __post_init__(self) -> None:
        if not self.scores.shape == self.losses.shape == self.weights.shape:
            raise InvalidInputError("a checked token has one score, one loss and one weight")
        if not ((self.losses >= 0) & (self.losses <= 1)).all():
            raise InvalidInputError("a loss lies between 0 and 1")
        if not (self.weights >= 0).all() or self.weights.sum() > 1 + 1e-9:
            raise InvalidInputError("weights are shares of one picture")


@dataclass(frozen=True, slots=True)
class Certified:
    """A threshold with its proof.

    Attributes:
        threshold: The largest that was kept.
        risk: The mean loss that was measured there.
        p_value: Of the hypothesis that its risk is above the limit; at most δ.
        calls: The share of the checked tokens whose score lies above it.
    """

    threshold: float
    risk: float
    p_value: float
    calls: float


def certify(
    pictures: Sequence[Checked], thresholds: Floats, *, limit: float, error: float
) -> Certified | None:
    """The largest threshold whose risk is at most `limit`, with probability 1 - `error`.

    Args:
        pictures: Independent of each other, in no particular order.
        thresholds: What may be chosen, in rising order, fixed before looking at the pictures;
            [k].
        limit: ε, the risk that is allowed.
        error: δ, how often the risk may be above it all the same.

    Returns:
        None if not even the lowest threshold can be proven safe.

    Raises:
        InvalidInputError: A number is out of range, or there are no pictures.
    """
    if not 0 < limit < 1 or not 0 < error < 1:
        raise InvalidInputError("the limit of the risk and its error lie between 0 and 1")
    if not pictures or (np.diff(thresholds) < 0).any():
        raise InvalidInputError("thresholds rise, and at least one picture was checked")
    losses = np.stack([_losses(picture, thresholds) for picture in pictures])
    kept = -1
    for index in range(len(thresholds)):
        if p_value(losses[:, index], limit, error) > error:
            break
        kept = index
    if kept < 0:
        return None
    threshold = float(thresholds[kept])
    return Certified(
        threshold,
        float(losses[:, kept].mean()),
        p_value(losses[:, kept], limit, error),
        _calls(pictures, threshold),
    )


def p_value(losses: Floats, limit: float, error: float) -> float:
    """How well n independent losses [n] within [0, 1] speak against a mean above `limit`.

    One over the best fortune of a gambler who bets against that mean, with stakes that depend
    on the losses before; no such gambler has a fortune of 1 / p with a probability above p
    (Ville; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
    arXiv:2010.09686). `error` only tunes the stakes.
    """
    count = np.arange(1, len(losses) + 1)
    mean = (0.5 + np.cumsum(losses)) / (1 + count)
    variance = (0.25 + np.cumsum((losses - mean) ** 2)) / (1 + count)
    before = np.concatenate([[0.25], variance[:-1]])
    stake = np.minimum(1.0, np.sqrt(2 * math.log(1 / error) / (len(losses) * before)))
    fortune = np.cumsum(np.log1p(-stake * (losses - limit)))
    return min(1.0, math.exp(-max(0.0, float(fortune.max()))))


def _losses(picture: Checked, thresholds: Floats) -> Floats:
    """The picture's loss at every threshold [k]."""
    local = np.isfinite(picture.scores)
    order = np.argsort(picture.scores[local], kind="stable")
    total = np.concatenate([[0.0], np.cumsum((picture.losses * picture.weights)[local][order])])
    losses: Floats = total[np.searchsorted(picture.scores[local][order], thresholds, "right")]
    return np.minimum(losses, 1.0)


def _calls(pictures: Sequence[Checked], threshold: float) -> float:
    weights = np.concatenate([picture.weights for picture in pictures])
    scores = np.concatenate([picture.scores for picture in pictures])
    asked = ~(np.isfinite(scores) & (scores <= threshold))
    return float(weights[asked].sum() / weights.sum()) if weights.sum() else 0.0
