"""The pictures of the demonstration: asked for, watched, and joined with what the hub stored."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud_hub.store.queries import Story
from edge_agent.answer import Made
from fleet.protocol.arrays import unpack_scores
from simulations.demonstration.plan import DevicePlan

DECISIONS = ("prefix", "local", "verified", "corrected", "unverified")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture as the device answered it, with the device it was made on."""

    plan: DevicePlan
    made: Made

    @property
    def caption(self) -> str:
        """What was asked for."""
        return self.made.caption


@dataclass(frozen=True, slots=True, eq=False)
class ToldPicture:
    """A picture together with the story of its tokens, as the database holds it.

    Attributes:
        picture: As the device answered.
        scores: [side, side], the score that decided; NaN where none was needed.
        decisions: [side, side], indices into `DECISIONS`.
        threshold: What the scores were compared with.
    """

    picture: Picture
    scores: NDArray[np.float64]
    decisions: NDArray[np.uint8]
    threshold: float

    @property
    def cloud_share(self) -> float:
        """Cloud forwards a token."""
        return self.picture.made.forwards / self.picture.made.tokens


def told(picture: Picture, story: Story) -> ToldPicture:
    """The picture with its story."""
    side = int(picture.made.tokens**0.5)
    decisions = np.frombuffer(story.decisions, np.uint8).reshape(side, side)
    scores = unpack_scores(story.scores).reshape(side, side)
    return ToldPicture(picture, scores, decisions, story.threshold)


def score_range(pictures: list[ToldPicture]) -> tuple[float, float]:
    """One range of log10 scores for all maps, so that they can be compared.

    The darkest and the brightest hundredth are left out.
    """
    values = np.log10(np.concatenate([each.scores.ravel() for each in pictures]))
    low, high = np.quantile(values, [0.01, 0.99])
    return float(low), max(float(high), float(low) + 1e-3)
