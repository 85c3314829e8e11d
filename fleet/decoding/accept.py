"""The device's decision on a drafted token: keep it, or ask the cloud."""

import math
from dataclasses import dataclass
from enum import Enum

from fleet.errors import InvalidInputError
from fleet.prediction import SCORE_NAMES, Prediction, ScoreName


class Decision(Enum):
    """What happens to a drafted token."""

    ACCEPT = "accept"  # it stands, and the cloud is not asked
    VERIFY = "verify"  # the cloud's own draw decides


@dataclass(frozen=True, slots=True)
class Policy:
    """Which score decides, and up to which value a draft stands.

    Raises:
        InvalidInputError: The score is unknown, or the threshold not a number.
    """

    score: ScoreName
    threshold: float

    def __post_init__(self) -> None:
        if self.score not in SCORE_NAMES:
            raise InvalidInputError(f"score {self.score!r} is unknown: take one of {SCORE_NAMES}")
        if math.isnan(self.threshold):
            raise InvalidInputError("the threshold is not a number: calibrate it again")

    @property
    def name(self) -> str:
        """The score's name, or "verify_all" or "device_only" where the score does not matter."""
        if math.isinf(self.threshold):
            return "device_only" if self.threshold > 0 else "verify_all"
        return self.score


def verify_all() -> Policy:
    """The policy that asks the cloud about every token: the picture is the cloud's."""
    return Policy("uncertainty", -math.inf)


def device_only() -> Policy:
    """The policy that never asks the cloud."""
    return Policy("uncertainty", math.inf)


def decide(prediction: Prediction, policy: Policy) -> Decision:
    """Whether the draft stands, from the law it was drawn from and never from the draw.

    A score that is not finite says that the prediction is broken, so the cloud is asked,
    unless the policy is to never ask.
    """
    if policy.threshold == math.inf:
        return Decision.ACCEPT
    score = prediction.score(policy.score)
    certain = math.isfinite(score) and score <= policy.threshold
    return Decision.ACCEPT if certain else Decision.VERIFY
