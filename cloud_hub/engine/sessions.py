"""Sessions: what the hub knows of each open picture, in the slots of the KV cache.

The number of sessions is bounded by the number of slots, in all and for each node. When all are
taken, the session that was idle longest gives up its slot, among the node's own where the node has
its part; its device is told `unknown_session` when it comes back, and
reopens with its own tokens.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cloud_hub.engine.luck import Luck
from cloud_hub.engine.requests import (
    Answer,
    Features,
    Lessons,
    Logits,
    Mask,
    Opening,
    Run,
    SessionKey,
    Tokens,
    Unchecked,
)
from fleet.decoding.verify import Rule
from fleet.ids import BootId, RequestId
from fleet.protocol.arrays import FEATURE_BYTES
from fleet.protocol.messages import Sampling

_ANSWERS_KEPT = 64


@dataclass(slots=True, eq=False)
class Session:
    """One open picture.

    Positions [0, cached) are in the KV cache; positions [0, length) are known. `ahead` holds
    the guided logits of position `cached`, once they were computed.
    """

    key: SessionKey
    boot: BootId
    slot: int
    caption: tuple[int, ...]
    seed: int
    sampling: Sampling
    use_features: bool
    rule: Rule
    lessons: Lessons
    branch: int
    tokens: Tokens  # [T]
    local: Mask  # [T]
    features: Features  # [T, 48]
    unchecked: Unchecked | None = None
    length: int = 0
    cached: int = 0
    first: Logits | None = None  # [V], of position 0
    ahead: Logits | None = None  # [V], of position `cached`
    waiting: dict[RequestId, float] = field(default_factory=dict)  # deadlines of what waits or runs
    answers: OrderedDict[RequestId, Answer] = field(default_factory=OrderedDict)
    luck: Luck = field(init=False)
    last_used: float = 0.0
    is_open: bool = True

    def __post_init__(self) -> None:
        self.luck = Luck(self.seed, len(self.tokens))

    @property
    def positions(self) -> int:
        """Tokens of one picture."""
        return len(self.tokens)

    @property
    def is_idle(self) -> bool:
        """Whether no request of it waits or runs."""
        return not self.waiting

    def known(self, start: int, end: int) -> Run:
        """The known tokens of the positions [start, end)."""
        part = slice(start, end)
        return Run(self.tokens[part], self.local[part], self.features[part])

    def write(self, start: int, run: Run) -> None:
        """Sets the tokens from position `start` on; what was known beyond them is forgotten."""
        end = start + len(run)
        self.tokens[start:end] = run.tokens
        self.local[start:end] = run.local
        self.features[start:end] = run.features
        self.length = end

    def put(self, token: int) -> None:
        """Appends a token that the cloud drew."""
        self.tokens[self.length] = token
        self.local[self.length] = False
        self.features[self.length] = 0
        self.length += 1

    def rewind(self, position: int) -> None:
        """Forgets the positions from `position` on.

        If the logits of `position` are not at hand, the token before it has to run again.
        """
        self.length = position
        if self.cached <= position:
            return
        self.cached, self.ahead = max(position - 1, 0), None
        if position == 0:
            self.ahead = self.first

    def remember(self, request_id: RequestId, answer: Answer) -> None:
        """Keeps an answer for the request's repeats."""
        self.answers[request_id] = answer
        while len(self.answers) > _ANSWERS_KEPT:
            self.answers.popitem(last=False)


class Sessions:
    """All open sessions, and the slots they own."""

    def __init__(
        self, *, slots: int, node_slots: int, positions: int, keep_s: float, idle_s: float
    ) -> None:
        """Args are: slots of the cache and how many of them one node may own, positions of a slot,
        the time for which an idle session is safe from eviction, and after which it ends."""
        self._free = list(range(slots))
        self._slots = slots
        self._node_slots = node_slots
        self._positions = positions
        self._keep_s = keep_s
        self._idle_s = idle_s
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()  # least recent first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def slots(self) -> int:
        """The number of sessions that fit."""
        return self._slots

    def find(self, key: SessionKey, now: float) -> Session | None:
        """The open session of `key`, marked as used."""
        session = self._sessions.get(key)
        if session is not None:
            self.touch(session, now)
        return session

    def touch(self, session: Session, now: float) -> None:
        """Marks a session as used, unless it has ended."""
        if session.is_open:
            session.last_used = now
            self._sessions.move_to_end(session.key)

    def open(self, request: Opening, now: float) -> Session | None:
        """A new session in place of one of the same key.

        None if every slot is in use, or as many as one node may own by this node.
        """
        self.close(request.key)
        node = request.key.node
        own = [session for session in self._sessions.values() if session.key.node == node]
        if len(own) >= self._node_slots and not self._evict(own, now):
            return None
        if not self._free and not self._evict(self._sessions.values(), now):
            return None
        session = Session(
            key=request.key,
            boot=request.boot,
            slot=self._free.pop(),
            caption=request.caption,
            seed=request.seed,
            sampling=request.sampling,
            use_features=request.use_features,
            rule=request.rule,
            lessons=request.lessons,
            branch=request.branch,
            tokens=np.zeros(self._positions, np.int64),
            local=np.zeros(self._positions, bool),
            features=np.zeros((self._positions, FEATURE_BYTES), np.int8),
            unchecked=request.unchecked,
            last_used=now,
        )
        self._sessions[request.key] = session
        return session

    def close(self, key: SessionKey) -> Session | None:
        """Frees the session's slot. A forward under way may still write there: the slot's next
        owner runs in a later forward, which begins at position 0 again."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.is_open = False
            self._free.append(session.slot)
        return session

    def expire(self, now: float) -> list[Session]:
        """Closes the sessions that nobody used for `idle_s`."""
        late = [
            s for s in self._sessions.values() if s.is_idle and now - s.last_used > self._idle_s
        ]
        for session in late:
            self.close(session.key)
        return late

    def _evict(self, candidates: Iterable[Session], now: float) -> bool:
        for session in candidates:
            if session.is_idle and now - session.last_used >= self._keep_s:
                self.close(session.key)
                return True
        return False
