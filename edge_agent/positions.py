"""What is known of each position of a picture: plain numbers one by one, arrays all together.

Both look at the same memory. A picture asks some twenty questions a token, and a numpy scalar
takes several times as long as a plain number.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from edge_agent.drafts import Draft, Mark, Tally
from fleet.prediction import FEATURE_SIZE

# An enumeration's member takes longer to look up than the question that is asked with it.
PREFIX, LOCAL, VERIFIED = int(Mark.PREFIX), int(Mark.LOCAL), int(Mark.VERIFIED)
CORRECTED, UNVERIFIED = int(Mark.CORRECTED), int(Mark.UNVERIFIED)
PENDING, EMPTY = int(Mark.PENDING), int(Mark.EMPTY)


class Positions:
    """The `size` positions of one picture, all of them empty at first.

    Attributes:
        tokens: [size], of empty positions what stood there before.
        marks: [size], of `Mark`.
        scores: [size], 0 where nothing was drafted.
        confidences: [size], the cloud's probability of a token; 0 where it is unknown.
        features: [size, 48], as the device model gives them.
    """

    __slots__ = (
        "_marks",
        "_scores",
        "_tokens",
        "confidences",
        "features",
        "marks",
        "scores",
        "tokens",
    )

    def __init__(self, size: int) -> None:
        self._marks = bytearray((EMPTY,)) * size
        self._tokens = array("q", bytes(8 * size))
        self._scores = array("d", bytes(8 * size))
        self.tokens: NDArray[np.int64] = np.frombuffer(self._tokens, np.int64)
        self.marks: NDArray[np.uint8] = np.frombuffer(self._marks, np.uint8)
        self.scores: NDArray[np.float64] = np.frombuffer(self._scores, np.float64)
        self.confidences: NDArray[np.float64] = np.zeros(size)
        self.features: NDArray[np.float32] = np.zeros((size, FEATURE_SIZE), np.float32)

    # ── Questions ─────────────────────────────────────────────────────────────────────────

    def token(self, position: int) -> int:
        """The token there."""
        return self._tokens[position]

    def is_pending(self, position: int) -> bool:
        """Whether the cloud must judge the token there, and has not."""
        return self._marks[position] == PENDING

    def first_pending(self, begin: int, end: int) -> int:
        """The first pending position from `begin` on and before `end`; -1: none."""
        return self._marks.find(PENDING, begin, end)

    def last_pending(self, begin: int, end: int) -> int:
        """The last pending position from `begin` on and before `end`; -1: none."""
        return self._marks.rfind(PENDING, begin, end)

    def count_pending(self, begin: int, end: int) -> int:
        """How many are pending from `begin` on and before `end`."""
        return self._marks.count(PENDING, begin, end)

    def first_open(self) -> int:
        """The first position that may still change, or lacks the cloud's word; else the size."""
        found = (self._marks.find(mark) for mark in (UNVERIFIED, PENDING, EMPTY))
        return min((position for position in found if position >= 0), default=len(self._marks))

    def tally(self, end: int) -> Tally:
        """The positions before `end` by how they were decided."""
        count, corrected = self._marks.count, self._marks.count(CORRECTED, 0, end)
        return Tally(
            prefix=count(PREFIX, 0, end),
            local=count(LOCAL, 0, end),
            verified=count(VERIFIED, 0, end) + corrected,
            corrected=corrected,
            unverified=count(UNVERIFIED, 0, end),
        )

    # ── Changes ───────────────────────────────────────────────────────────────────────────

    def put(self, position: int, draft: Draft, mark: int) -> None:
        """Takes a draft and how it stands."""
        self._tokens[position] = draft.token
        self._marks[position] = mark
        self._scores[position] = draft.score
        self.features[position] = draft.feature

    def fill(self, position: int, draft: Draft) -> None:
        """Takes what the device says of a position, whose token is another's."""
        self._scores[position] = draft.score
        self.features[position] = draft.feature

    def settle(self, position: int, token: int, mark: int) -> None:
        """Puts the cloud's token there, with how it came."""
        self._tokens[position] = token
        self._marks[position] = mark

    def mark(self, position: int, mark: int) -> None:
        """Says how the token there stands."""
        self._marks[position] = mark

    def empty(self, begin: int, end: int) -> None:
        """Drops what was drafted from `begin` on and before `end`."""
        self._marks[begin:end] = bytes((EMPTY,)) * (end - begin)

    def give_up(self) -> None:
        """What is pending stays as it is, unverified."""
        self.marks[self.marks == PENDING] = UNVERIFIED
