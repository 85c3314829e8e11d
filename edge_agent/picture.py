"""One picture being decoded: what is drafted, what is settled, what is asked, what was dropped.

Pure state: no clock, no network. `generate.py` drives it; every method is a transition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_agent.drafts import (
    Backlog,
    Draft,
    Known,
    Lesson,
    States,
    Tally,
    Verdict,
    check_verdict,
)
from edge_agent.positions import (
    CORRECTED,
    LOCAL,
    PENDING,
    PREFIX,
    UNVERIFIED,
    VERIFIED,
    Positions,
)
from fleet.decoding.residual import QuantisedLaw
from fleet.errors import ProtocolError
from fleet.ids import RequestId


@dataclass(slots=True)
class _Asked:
    """A backlog on its way, with its verdict when that came before its turn."""

    backlog: Backlog
    verdict: Verdict | None = None


@dataclass(slots=True)
class Picture:
    """The tokens of one picture and the state of each position.

    Positions before `settled` are final. Between `settled` and `length` are drafts that may
    still fall. The cloud holds, or will hold when all answers are in, the first `sent` tokens.
    The loop asks for `settled`, `undecided` and `unsent` at every token, so they are kept.
    """

    size: int
    vocab_size: int
    length: int = 0
    sent: int = 0
    settled: int = 0  # the first position that waits for a verdict, or `length` when none does
    undecided: int = 0  # drafts that the cloud must judge and has not
    unsent: int = 0  # those of them that it was not asked about
    branch: int = 0
    seen: int = 0  # the cloud's forwards have run, and its spot checks had, all before it
    wasted: int = 0
    rollbacks: int = 0
    alone: bool = False  # the cloud takes no part any more
    at: Positions = field(init=False)
    lessons: list[Lesson] = field(init=False, default_factory=list)
    _laws: dict[int, QuantisedLaw] = field(init=False, default_factory=dict)  # by position
    _states: dict[int, States] = field(init=False, default_factory=dict)  # by position
    _asked: dict[RequestId, _Asked] = field(init=False, default_factory=dict)
    _bonus: tuple[int, int] | None = field(init=False, default=None)  # position, token

    def __post_init__(self) -> None:
        self.at = Positions(self.size)

    # ── What can be asked of it ───────────────────────────────────────────────────────────

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The token of each position [size]."""
        return self.at.tokens

    @property
    def marks(self) -> NDArray[np.uint8]:
        """How each position stands [size]."""
        return self.at.marks

    @property
    def is_complete(self) -> bool:
        """Whether all positions are final."""
        return self.settled == self.size

    @property
    def in_flight(self) -> int:
        """Backlogs that are asked and not answered."""
        return len(self._asked)

    @property
    def tally(self) -> Tally:
        """Settled positions by how they were decided."""
        return self.at.tally(self.settled)

    def may_draft(self, window: int) -> bool:
        """Whether a draft fits: at most `window` tokens stand beyond the first unsettled one."""
        return self.length < self.size and self.length - self.settled < window

    def is_waiting_for(self, request_id: RequestId) -> bool:
        """Whether the verdict on this request would still change something."""
        return request_id in self._asked

    def is_first(self, request_id: RequestId) -> bool:
        """Whether no earlier request is out."""
        return next(iter(self._asked), None) == request_id

    def backlog(self) -> Backlog | None:
        """What to send now: from `sent` to the last uncertain token, or None.

        Local tokens after the last uncertain one are not sent: nobody waits for them.
        """
        end = self.at.last_pending(self.sent, self.length) + 1
        if not end:
            return None
        span = slice(self.sent, end)
        marks = self.at.marks[span]
        uncertain, local = marks == PENDING, marks == LOCAL
        return Backlog(
            branch=self.branch,
            start=self.sent,
            tokens=self.at.tokens[span].copy(),
            uncertain=uncertain,
            local=local,
            features=self.at.features[span][local],
            laws=self._laws_of(uncertain) if self._laws else (),
        )

    def history(self) -> Backlog:
        """All settled tokens, for a worker that has to build its cache anew."""
        span = slice(0, self.settled)
        local = self.at.marks[span] == LOCAL
        return Backlog(
            branch=self.branch,
            start=0,
            tokens=self.at.tokens[span].copy(),
            uncertain=np.zeros(self.settled, bool),
            local=local,
            features=self.at.features[span][local],
        )

    def known(self, prefix: int) -> Known:
        """The tokens before the first one that is not final or not verified.

        None at all where the cloud has not injected the `prefix` tokens that it should have.
        """
        is_injected = bool((self.marks[:prefix] == PREFIX).all())
        end = self.at.first_open() if is_injected else 0
        return Known(self.tokens[:end].copy(), self.marks[:end].copy())

    # ── What can happen to it ─────────────────────────────────────────────────────────────

    def restore(self, known: Known) -> None:
        """Begins with tokens that are final. The device still steps through them: see `fill`."""
        end = len(known.tokens)
        self.tokens[:end], self.marks[:end] = known.tokens, known.marks
        self.length = self.sent = self.settled = end

    def fill(self, position: int, draft: Draft) -> None:
        """Takes what the device says at a position whose token is final already."""
        self.at.fill(position, draft)

    def inject(self, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        """Appends tokens drawn by the cloud: the injected prefix. A reopened picture gets none.

        Raises:
            ProtocolError: They do not fit, or are no codes of this family.
        """
        self.seen = max(self.seen, self.sent)  # a reopened picture's history was run
        if not tokens:
            return
        end = self.length + len(tokens)
        fits = self.settled == self.length and end <= self.size
        if not fits or not all(0 <= token < self.vocab_size for token in tokens):
            raise ProtocolError(f"the hub's prefix of {len(tokens)} tokens does not fit")
        span = slice(self.length, end)
        self.tokens[span] = tokens
        self.marks[span] = PREFIX
        if len(confidences) == len(tokens):
            self.at.confidences[span] = confidences
        self.length = self.sent = self.settled = self.seen = end

    def draft(self, draft: Draft) -> None:
        """Appends one token of the device."""
        position, mark = self.length, LOCAL
        if draft.uncertain:
            mark = UNVERIFIED if self.alone else PENDING
        self.at.put(position, draft, mark)
        if draft.law is not None:
            self._laws[position] = draft.law
        if draft.states is not None:
            self._states[position] = draft.states
        self.length += 1
        if mark == PENDING:
            self.undecided += 1
            self.unsent += 1
        elif not self.undecided:
            self.settled = self.length
        if self._bonus is not None:
            self._use_bonus(*self._bonus)

    def asked(self, request_id: RequestId, backlog: Backlog) -> None:
        """Notes that `backlog` is on its way."""
        self._asked[request_id] = _Asked(backlog)
        self.sent = backlog.end
        self._count()

    def apply(self, request_id: RequestId, verdict: Verdict) -> None:
        """Takes a verdict, at its turn: requests are settled in the order they were sent.

        A repeated verdict, or one on a request that a correction has overtaken, changes nothing.

        Raises:
            ProtocolError: The verdict does not fit its request.
        """
        asked = self._asked.get(request_id)
        if asked is None:
            return
        check_verdict(asked.backlog, verdict, self.vocab_size)
        asked.verdict = verdict
        while self._asked:
            first_id, first = next(iter(self._asked.items()))
            if first.verdict is None:
                return
            del self._asked[first_id]
            self._settle(first.backlog, first.verdict)
            self._count()

    def withdraw(self, request_id: RequestId) -> None:
        """Forgets a request and all later ones, so that their tokens are sent again."""
        asked = self._asked.get(request_id)
        if asked is None:
            return
        ids = list(self._asked)
        for later in ids[ids.index(request_id) :]:
            del self._asked[later]
        self.sent = asked.backlog.start
        self._count()

    def reopen(self) -> None:
        """Begins a new session: what is settled is its history, the rest is asked again.

        The branch moves on, so that requests of the old session are stale wherever they arrive.
        """
        self._asked.clear()
        self._bonus = None
        self.sent = self.settled
        self.branch += 1
        self._count()

    def fall_back(self) -> None:
        """Goes on without the cloud: uncertain tokens stay as drafted, marked unverified."""
        self.alone = True
        self._asked.clear()
        self.at.give_up()
        self._count()

    # ── How it changes ────────────────────────────────────────────────────────────────────

    def _count(self) -> None:
        """After anything but a draft: what waits for the cloud, from where on."""
        waiting = self.at.first_pending(self.settled, self.length)
        self.settled = self.length if waiting < 0 else waiting
        self.undecided = self.at.count_pending(self.settled, self.length)
        self.unsent = self.at.count_pending(self.sent, self.length)

    def _laws_of(self, uncertain: NDArray[np.bool_]) -> tuple[QuantisedLaw, ...]:
        positions = self.sent + np.flatnonzero(uncertain)
        known = (self._laws.get(position) for position in positions.tolist())
        return tuple(law for law in known if law is not None)

    def _settle(self, backlog: Backlog, verdict: Verdict) -> None:
        self._learn(backlog, verdict)
        stop = backlog.start + verdict.accepted
        judged = backlog.start + np.flatnonzero(backlog.uncertain[: verdict.accepted + 1])
        known = verdict.confidences[: len(judged)]
        self.at.confidences[judged[: len(known)]] = known
        self.marks[judged[judged < stop]] = VERIFIED
        self.seen = max(self.seen, min(stop + 1, backlog.end))  # what fell was seen, too
        if stop < backlog.end:
            self._correct(stop, verdict.next_token)
            self.branch = verdict.branch
            self.sent = self.length
            self._asked.clear()
        elif verdict.next_token >= 0:
            self._bonus = (stop, verdict.next_token)
            self._use_bonus(*self._bonus)

    def _learn(self, backlog: Backlog, verdict: Verdict) -> None:
        """Keeps what the cloud tells of positions that were drafted here: the drafts of a backlog
        stand until its verdict, so their states are those of the present tokens."""
        laws = verdict.top_laws
        for index, position in enumerate(laws.positions.tolist()):
            if position in self._states and backlog.start <= position < backlog.end:
                self.lessons.append(
                    Lesson(
                        self._states[position],
                        int(laws.tokens[index]),
                        laws.codes[index],
                        laws.log_probs[index],
                    )
                )

    def _correct(self, position: int, token: int) -> None:
        """Puts the cloud's token at `position`; all drafts after it fall."""
        self.wasted += self.length - position - 1
        self.rollbacks += 1
        self.at.empty(position + 1, self.length)
        self.at.settle(position, token, CORRECTED)
        self.length = position + 1
        self._bonus = None

    def _use_bonus(self, position: int, token: int) -> None:
        """Settles a position by the cloud's own draw for it, while nobody was asked about it."""
        if position >= self.length:
            return
        self._bonus = None
        if not self.at.is_pending(position) or position < self.sent:
            return
        if self.at.token(position) == token:
            self.at.mark(position, VERIFIED)
        else:
            self._correct(position, token)
        self._count()
