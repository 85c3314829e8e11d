"""What a rule is: who decides about a token, given what both models say."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.models.branches import Tokens
from fleet.prediction import PolicyScore
from simulations.evaluation.moment import Moment

Bar = tuple[PolicyScore, float]
NO_BAR: Bar = ("uncertainty", float("nan"))


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """The tokens of one position.

    Attributes:
        tokens: [B].
        decisions: [B], how each came about.
        sent: [B], how many drafts went to the cloud in the round that begins here; 0: none does.
        score: [B], what the decisions were made by, where there is a score.
    """

    tokens: Tokens
    decisions: NDArray[np.uint8]
    sent: NDArray[np.uint8]
    score: NDArray[np.floating] | None = None


class Running(Protocol):
    """A rule at work on one batch; it may remember what it did at earlier positions."""

    def settle(self, moment: Moment) -> Settled: ...


class Rule(Protocol):
    """The settings of a rule, which name it."""

    uses_device: ClassVar[bool]
    uses_cloud: ClassVar[bool]

    @property
    def bar(self) -> Bar:
        """The score that decides and its threshold, for the interval feature."""

    def begin(self, count: int) -> Running:
        """The rule at work on `count` pictures."""


def settled(tokens: Tokens, decisions: NDArray[np.uint8]) -> Settled:
    """Tokens of a position where no round of drafts begins."""
    return Settled(tokens, decisions, np.zeros(len(tokens), np.uint8))


def all_of(count: int, decision: int) -> NDArray[np.uint8]:
    """One decision [B] for all pictures."""
    return np.full(count, decision, np.uint8)
