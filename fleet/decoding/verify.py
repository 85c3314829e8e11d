"""The cloud's verdict on a backlog, by shared Gumbel noise, and the rules there are."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

Tokens = NDArray[np.int64]

NO_TOKEN = -1

RuleName = Literal["gumbel", "residual"]
RULES: tuple[RuleName, ...] = get_args(RuleName)
MAX_RELAXATION = 100.0


@dataclass(frozen=True, slots=True)
class Rule:
    """How the cloud judges: by shared Gumbel noise, or by acceptance and residual.

    Attributes:
        name: "gumbel" needs token ids only; "residual" needs the laws of the judged drafts.
        relaxation: Of the residual rule; 1 is exact.

    Raises:
        InvalidInputError: The rule is unknown, or its relaxation out of range.
    """

    name: RuleName = "gumbel"
    relaxation: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise InvalidInputError(
                f"verification rule {self.name!r} is unknown: take one of {', '.join(RULES)}"
            )
        if not 1 <= self.relaxation <= (MAX_RELAXATION if self.name == "residual" else 1):
            raise InvalidInputError(
                f"a relaxation of {self.relaxation} does not fit the rule {self.name!r}: take 1,"
                f" which is exact, or for the residual rule up to {MAX_RELAXATION:g}"
            )


SHARED_NOISE = Rule()


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much of a backlog stands, and what follows it.

    Attributes:
        accepted: Backlog tokens that stand, from the first.
        next_token: The correction if `accepted` is short of the backlog's length, else the
            bonus token, else -1: the backlog ended with the picture.
    """

    accepted: int
    next_token: int


def judge(drafts: Tokens, uncertain: NDArray[np.bool_], target_draws: Tokens) -> Verdict:
    """The verdict of the cloud's own draws on the device's drafts.

    Device and cloud draw with one noise g_t for each position t: the draft is
    x_t = argmax(log q + g_t), the target's draw y_t = argmax(log p + g_t). An uncertain draft
    stands iff x_t = y_t; else y_t replaces it and later drafts fall. Either way the token is
    y_t, whose law is p exactly, since g_t is independent of all tokens before t.

    Args:
        drafts: The backlog; [n].
        uncertain: Where the cloud shall judge; [n].
        target_draws: The cloud's draws at the backlog's positions and, unless the picture ends
            there, at the one after; [n + 1] or [n].

    Raises:
        InvalidInputError: The lengths do not fit together.
    """
    count = len(drafts)
    if len(uncertain) != count or len(target_draws) not in (count, count + 1):
        raise InvalidInputError(
            f"{count} drafts with {len(uncertain)} marks and {len(target_draws)} target draws"
        )

    # Uncertain and x != y: replace. Everything else stands. Two draws with common Gumbel noise
    # agree with probability at least (1 - TV) / (1 + TV) (drafter-invariant speculative
    # decoding, arXiv:2408.07978), so good drafts mostly do.
    corrected = (uncertain & (drafts != target_draws[:count])).nonzero()[0]
    accepted = int(corrected[0]) if len(corrected) else count
    has_next = accepted < len(target_draws)
    return Verdict(accepted, int(target_draws[accepted]) if has_next else NO_TOKEN)
