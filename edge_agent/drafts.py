"""What a picture's bookkeeping passes around: marks, drafts, backlogs, verdicts, tallies."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.residual import QuantisedLaw
from fleet.decoding.top_laws import NO_LAWS, TopLaws
from fleet.errors import ProtocolError


class Mark(IntEnum):
    """How a position stands; the first five are the codes of `GenerationRecord.decisions`."""

    PREFIX = 0
    LOCAL = 1
    VERIFIED = 2
    CORRECTED = 3
    UNVERIFIED = 4
    PENDING = 5  # drafted, uncertain, not judged yet
    EMPTY = 6


@dataclass(frozen=True, slots=True)
class Draft:
    """What the device says about one position: its token and whether the cloud shall judge it."""

    token: int
    score: float
    uncertain: bool
    feature: NDArray[np.floating]  # [48], as the device model gives it
    law: QuantisedLaw | None = None  # that the token was drawn from, where the rule needs it
    states: "States | None" = None  # where the device learns


@dataclass(frozen=True, slots=True)
class States:
    """What the device's head made of a position: the hidden state, and the guided one."""

    hidden: NDArray[np.floating]  # [D]
    guided: NDArray[np.floating]  # [D]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A position of which the cloud has told its law."""

    states: States
    token: int  # the cloud's draw
    codes: NDArray[np.int64]  # [K]
    log_probs: NDArray[np.float16]  # [K]


@dataclass(frozen=True, slots=True)
class Known:
    """The first tokens of a picture that is made again, all of them final."""

    tokens: NDArray[np.int64]  # [n]
    marks: NDArray[np.uint8]  # [n]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Tokens that the cloud has not seen yet, from `start` to the last uncertain one."""

    branch: int
    start: int
    tokens: NDArray[np.int64]  # [n]
    uncertain: NDArray[np.bool_]  # [n]
    local: NDArray[np.bool_]  # [n]
    features: NDArray[np.float32]  # [number of local, 48]
    laws: tuple[QuantisedLaw, ...] = ()  # of the uncertain tokens, where the rule needs them

    @property
    def end(self) -> int:
        """The position after the backlog."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cloud's answer to one backlog."""

    branch: int  # after the verdict
    accepted: int
    next_token: int
    confidences: NDArray[np.float64]  # of each judged position, a correction included
    top_laws: TopLaws = NO_LAWS  # of a sampled share of the positions


@dataclass(frozen=True, slots=True)
class Tally:
    """Positions by how they were decided."""

    prefix: int
    local: int
    verified: int  # corrected ones included
    corrected: int
    unverified: int


def check_verdict(backlog: Backlog, verdict: Verdict, vocab_size: int) -> None:
    """Raises ProtocolError unless `verdict` can be a verdict on `backlog`."""
    size = len(backlog.tokens)
    corrects = verdict.accepted < size
    if not 0 <= verdict.accepted <= size or not -1 <= verdict.next_token < vocab_size:
        raise ProtocolError(f"a verdict of {verdict.accepted} on a backlog of {size} tokens")
    if corrects and (verdict.next_token < 0 or not backlog.uncertain[verdict.accepted]):
        raise ProtocolError("a verdict that corrects a token which was not asked about")
    if verdict.branch != backlog.branch + corrects:
        raise ProtocolError(f"a verdict of branch {verdict.branch} on branch {backlog.branch}")
