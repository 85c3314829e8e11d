"""What the engine is asked and what it answers, as arrays instead of messages."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.residual import QuantisedLaw
from fleet.decoding.top_laws import NO_LAWS, TopLaws
from fleet.decoding.verify import SHARED_NOISE, Rule
from fleet.ids import BootId, GenerationId, NodeId, RequestId
from fleet.protocol.messages import Sampling

Tokens = NDArray[np.int64]
Mask = NDArray[np.bool_]
Features = NDArray[np.int8]
Logits = NDArray[np.float32]


class SessionKey(NamedTuple):
    """One picture of one node. A foreign node that names the picture has another key."""

    node: NodeId
    generation: GenerationId


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Known tokens in a row, and what the device said of those it accepted by itself."""

    tokens: Tokens  # [n]
    local: Mask  # [n]
    features: Features  # [n, 48], zero where not local

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, which: slice) -> "Run":
        """Some of them."""
        return Run(self.tokens[which], self.local[which], self.features[which])


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Of a history that is run for its spot checks: which tokens the cloud has not looked at."""

    start: int  # the first of them
    share: float  # of all pictures with such tokens, that are run at all


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a device is told of the cloud's laws, to learn from.

    Attributes:
        size: Codes of a law; 0: the device does not learn.
        share: Of all positions, chosen by the picture's noise.
    """

    size: int = 0
    share: float = 0.0


NO_LESSONS = Lessons()


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """Asks for a session on the tokens of `history` and for tokens up to `prefix_tokens`."""

    key: SessionKey
    request_id: RequestId
    boot: BootId
    caption: tuple[int, ...]  # word ids
    seed: int
    sampling: Sampling
    use_features: bool
    prefix_tokens: int
    branch: int
    history: Run
    deadline_s: float
    rule: Rule = SHARED_NOISE
    unchecked: Unchecked | None = None  # None: a device asks
    lessons: Lessons = NO_LESSONS
    wants_condition: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Backlog:
    """Asks to run the tokens from position `start` on and to judge the uncertain ones."""

    key: SessionKey
    request_id: RequestId
    branch: int
    start: int
    run: Run
    uncertain: Mask  # [n]
    deadline_s: float
    laws: tuple[QuantisedLaw, ...] = ()  # of the uncertain drafts, for the residual rule

    @property
    def end(self) -> int:
        """The position after the backlog."""
        return self.start + len(self.run)


Request = Opening | Backlog


def same_opening(one: Request, other: Request) -> bool:
    """Whether two openings differ in nothing but their ids and deadlines."""
    if not isinstance(one, Opening) or not isinstance(other, Opening):
        return False
    plain = all(getattr(one, name) == getattr(other, name) for name in _PLAIN)
    return plain and all(
        np.array_equal(getattr(one.history, name), getattr(other.history, name))
        for name in ("tokens", "local", "features")
    )


_PLAIN = (
    "key",
    "boot",
    "caption",
    "seed",
    "sampling",
    "use_features",
    "rule",
    "lessons",
    "prefix_tokens",
    "branch",
    "unchecked",
    "wants_condition",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request took: forwards that served it, time queued, time in forwards."""

    forwards: int
    queue_s: float
    forward_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A session, the tokens drawn for it, and what its caption means if that was asked."""

    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    cost: Cost
    condition: bytes = b""


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict (see `VerifyResponse`), and the session's branch after it."""

    branch: int
    accepted: int
    next_token: int
    confidences: tuple[float, ...]
    cost: Cost
    top_laws: TopLaws = NO_LAWS


class Reason(Enum):
    """Why a request cannot be served as it is; the names of `Refused.reason`."""

    UNKNOWN_SESSION = "unknown_session"
    STALE = "stale"
    GAP = "gap"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Denied:
    """A request that cannot be served as it is."""

    reason: Reason
    expected: int = -1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Full:
    """No room: come back later."""

    retry_after_s: float


Answer = Opened | Judged | Denied | Full
