"""The threshold that spot checks prove safe: `cloud_hub calibrate`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cloud_hub.store.checks import CheckedPicture
from fleet.decoding.risk import Certified, Checked, certify
from fleet.errors import InvalidInputError
from fleet.protocol.arrays import SCORE_BROKEN, score_codes, score_limit

Loss = Literal["mismatch", "harm"]
MAX_HARM = 4.0  # squared distance of two code vectors of length 1

# One threshold between each score code and the next: what stays local is then known exactly.
CODES = np.arange(SCORE_BROKEN, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is calibrated, and how safely.

    Attributes:
        loss: "mismatch": how often the cloud would have drawn another token, which is at least
            the total variation distance of both laws; "harm": by how far its code lies off.
        limit: Mean loss a token of a picture that is allowed.
        error: How often the limit may be exceeded all the same.
    """

    loss: Loss
    limit: float
    error: float


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A threshold, what it was found on, and what it costs."""

    policy: str
    device_version: str
    loss: Loss
    limit: float
    error: float
    pictures: int
    tokens_checked: int
    threshold_in_force: float
    threshold: float
    risk: float
    calls: float


def calibrate(pictures: Sequence[CheckedPicture], wanted: Wanted) -> Calibrated:
    """The largest threshold that the checks prove safe.

    Raises:
        InvalidInputError: Nothing was checked, checks are of several policies or versions, or
            no threshold can be proven safe with so few; the sentence says which.
    """
    usable = [picture for picture in pictures if _is_usable(picture)]
    policy, version = _only(usable, "policy"), _only(usable, "device_version")
    if "+dynamic" in policy:
        raise InvalidInputError(
            f"the threshold of {policy!r} moves within a picture, so no fixed one can be proven"
        )
    scale = MAX_HARM if wanted.loss == "harm" else 1.0
    found = certify(
        [_checked(picture, wanted.loss) for picture in usable],
        CODES,
        limit=wanted.limit / scale,
        error=wanted.error,
    )
    return _told(found, usable, wanted, policy, version)


def _told(
    found: Certified | None,
    usable: Sequence[CheckedPicture],
    wanted: Wanted,
    policy: str,
    version: str,
) -> Calibrated:
    if found is None:
        raise InvalidInputError(
            f"{len(usable)} checked pictures prove no threshold safe for a {wanted.loss} of"
            f" {wanted.limit:g}: collect more, or raise --limit or --error"
        )
    scale = MAX_HARM if wanted.loss == "harm" else 1.0
    return Calibrated(
        policy=policy,
        device_version=version,
        loss=wanted.loss,
        limit=wanted.limit,
        error=wanted.error,
        pictures=len(usable),
        tokens_checked=sum(len(picture.positions) for picture in usable),
        threshold_in_force=usable[-1].threshold,
        threshold=score_limit(int(found.threshold)),
        risk=found.risk * scale,
        calls=found.calls,
    )


def _only(pictures: Sequence[CheckedPicture], name: str) -> str:
    kinds = Counter(str(getattr(picture, name)) for picture in pictures)
    if not kinds:
        raise InvalidInputError(
            "no picture was checked there: spot checks come with the pictures that devices make"
        )
    if len(kinds) > 1:
        listed = ", ".join(f"{kind} ({count})" for kind, count in kinds.most_common())
        option = f"--{name.replace('_', '-')}"
        raise InvalidInputError(f"checks are of several kinds: choose by {option}: {listed}")
    return next(iter(kinds))


def _is_usable(picture: CheckedPicture) -> bool:
    """Whether the checks say something of the local tokens, if there are any."""
    return picture.tokens > 0 and (picture.local_tokens == 0 or bool(picture.local.any()))


def _checked(picture: CheckedPicture, loss: Loss) -> Checked:
    """One picture for the proof; scores are codes, of which the highest is "no number".

    A checked local token stands for its share of the local ones. The others, the prefix among
    them, are shared out among those that were judged; where none was, they count as lost from
    the threshold in force upwards.
    """
    scores = np.where(picture.scores == SCORE_BROKEN, np.nan, picture.scores.astype(np.float64))
    losses = picture.harms / MAX_HARM if loss == "harm" else ~picture.matches
    share = picture.local_tokens / picture.tokens
    local, judged = int(picture.local.sum()), int((~picture.local).sum())
    weights = np.where(picture.local, share / max(local, 1), (1 - share) / max(judged, 1))
    if judged or share == 1:
        return Checked(scores, np.clip(losses.astype(np.float64), 0, 1), weights)
    unseen = float(score_codes(np.array([max(picture.threshold, 0.0)]))[0]) + 1
    return Checked(
        np.append(scores, unseen),
        np.append(np.clip(losses.astype(np.float64), 0, 1), 1.0),
        np.append(weights, 1 - share),
    )
