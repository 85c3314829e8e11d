"""The device's decision on a drafted token: keep it, or ask the cloud.

A decision looks at the law and at the tokens before it, never at the drawn token: what a policy
remembers is a `Track`, kept by position and dropped with the drafts that fall.
"""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.noise import coin
from fleet.decoding.uncertainty import perturbation
from fleet.errors import InvalidInputError
from fleet.prediction import POLICY_SCORES, PolicyScore, Prediction

TRACKING_RATE = 0.05  # by how much one decision moves log τ
MAX_SHIFT = 1.0  # log τ stays within this of the calibrated one
# The same for a share that is to be kept in every picture, wherever the calibrated one lies.
FIRM_RATE, FIRM_SHIFT = 0.3, 2.5

Floats = NDArray[np.floating]


class Decision(Enum):
    """What happens to a drafted token."""

    ACCEPT = "accept"  # it stands, and the cloud is not asked
    VERIFY = "verify"  # the cloud's own draw decides


@dataclass(frozen=True, slots=True)
class Policy:
    """Which score decides, up to which value a draft stands, and what is verified in any case.

    Attributes:
        score: What is compared.
        threshold: The value up to which a draft stands; inf: all, -inf: none.
        call_share: If above 0, the threshold is dynamic: it moves so that this share of the
            tokens after the prefix is verified.
        firm: Whether a dynamic threshold is to keep the share in every picture: it moves faster
            and farther.
        max_run: If above 0, the token after so many accepted in a row is verified.
        row_length: If above 0, the first token of every row of so many is verified.

    Raises:
        InvalidInputError: The score is unknown, or a number out of range.
    """

    score: PolicyScore
    threshold: float
    call_share: float = 0.0
    max_run: int = 0
    row_length: int = 0
    firm: bool = False

    def __post_init__(self) -> None:
        if self.score not in POLICY_SCORES:
            raise InvalidInputError(f"score {self.score!r} is unknown: take one of {POLICY_SCORES}")
        if math.isnan(self.threshold):
            raise InvalidInputError("the threshold is not a number: calibrate it again")
        if not 0 <= self.call_share < 1 or self.max_run < 0 or self.row_length < 0:
            raise InvalidInputError("a policy's call share lies in [0, 1), its lengths from 0 up")
        if self.call_share and not 0 < self.threshold < math.inf:
            raise InvalidInputError("a dynamic threshold begins at a finite one above 0")

    @property
    def name(self) -> str:
        """What decides, such as "spread+dynamic+run12+rows", "verify_all" or "device_only".

        A firm share is called "budget" in place of "dynamic".
        """
        fixed = {math.inf: "device_only", -math.inf: "verify_all"}
        parts = [fixed.get(self.threshold, self.score)]
        parts += ["budget" if self.firm else "dynamic"] * (self.call_share > 0)
        parts += [f"run{self.max_run}"] * (self.max_run > 0)
        parts += ["rows"] * (self.row_length > 0)
        return "+".join(parts)


@dataclass(frozen=True, slots=True)
class Track:
    """What the decisions before a position leave for the next one; numbers, or arrays [...].

    It is a function of the decisions at the positions before, so of the kept prefix: whoever
    drops drafts goes back to the track of the position where they began.
    """

    shift: float | Floats = 0.0  # of log τ
    run: int | NDArray[np.int64] = 0  # accepted in a row


START = Track()


def verify_all() -> Policy:
    """The policy that asks the cloud about every token: the picture is the cloud's."""
    return Policy("uncertainty", -math.inf)


def device_only() -> Policy:
    """The policy that never asks the cloud."""
    return Policy("uncertainty", math.inf)


def score_of(prediction: Prediction, policy: Policy, seed: int) -> float:
    """The number that the policy compares; not a number where the prediction lacks it."""
    match policy.score:
        case "random":
            return float(coin(seed, np.array([prediction.position]))[0])
        case "perturbation":
            return math.nan if prediction.logits is None else float(perturbation(prediction.logits))
        case name:
            return prediction.score(name)


def decide(policy: Policy, score: float, position: int, track: Track = START) -> Decision:
    """Whether the draft stands: what `asks` says of one score, in plain numbers.

    A device decides at every token, and there an array of one takes longer than the question.
    """
    if policy.threshold == math.inf:
        asked = False
    else:
        limit = policy.threshold
        if policy.call_share:
            limit *= float(np.exp(track.shift))
        asked = not (math.isfinite(score) and score <= limit)
    is_capped = policy.max_run > 0 and bool(track.run >= policy.max_run)
    begins_row = policy.row_length > 0 and position % policy.row_length == 0
    return Decision.VERIFY if asked or is_capped or begins_row else Decision.ACCEPT


def asks(
    policy: Policy, score: Floats | np.float64, position: int, track: Track = START
) -> NDArray[np.bool_]:
    """Where the cloud is asked [...] about the token at `position`, from scores [...].

    A score that is not finite says that the prediction is broken, so the cloud is asked,
    unless the policy is to ask by no score.
    """
    if policy.threshold == math.inf:
        asked = np.zeros(np.shape(score), bool)
    else:
        limit = policy.threshold * np.exp(track.shift) if policy.call_share else policy.threshold
        asked = ~(np.isfinite(score) & (score <= limit))
    if policy.max_run:
        asked = asked | (np.asarray(track.run) >= policy.max_run)
    if policy.row_length and position % policy.row_length == 0:
        asked = np.ones_like(asked)
    return np.asarray(asked, bool)


def follow(policy: Policy, track: Track, asked: bool | NDArray[np.bool_]) -> Track:
    """The track after a position at which the cloud was asked, or not; [...].

    log τ moves by 0.05 (1[asked] - call share), and stays within 1 of where it began; for a firm
    share by 0.3, and within 2.5.
    """
    shift = track.shift
    if isinstance(asked, bool) and not policy.call_share:
        return Track(shift, track.run + 1 if policy.max_run and not asked else 0)
    if policy.call_share:
        rate, most = (FIRM_RATE, FIRM_SHIFT) if policy.firm else (TRACKING_RATE, MAX_SHIFT)
        moved = shift + rate * (np.asarray(asked, np.float64) - policy.call_share)
        shift = np.clip(moved, -most, most)
    if policy.max_run:
        return Track(shift, np.where(asked, 0, np.asarray(track.run) + 1))
    return Track(shift, 0)
