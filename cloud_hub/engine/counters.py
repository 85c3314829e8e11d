"""What the engine did since it started, as plain numbers."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from cloud_hub.engine.requests import Answer, Backlog, Denied, Full, Judged, Opened, Request
from fleet.protocol.arrays import pack_top_laws

_SECONDS = tuple(base * 10.0**power for power in range(-3, 2) for base in (1, 2, 5))
_COUNTS = tuple(float(1 << power) for power in range(10))
_POSITIONS = 32  # places of a backlog that are counted one by one


@dataclass(slots=True)
class Distribution:
    """How often a number fell at or below each edge."""

    edges: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges) + 1)

    def observe(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each edge, the last infinite, with the values up to it."""
        return zip((*self.edges, math.inf), accumulate(self.counts), strict=True)


def _seconds() -> Distribution:
    return Distribution(_SECONDS)


def _counts() -> Distribution:
    return Distribution(_COUNTS)


@dataclass(slots=True)
class Counters:
    """Sums over the engine's life; one writer, the engine's loop."""

    forwards: int = 0
    spans: int = 0
    tokens: int = 0
    forward_s: float = 0.0
    opened: int = 0
    prefix_tokens: int = 0
    verified: int = 0  # backlogs judged
    judged: int = 0  # positions judged, corrected ones included
    drafts: int = 0  # backlogs with tokens to judge
    draft_tokens: int = 0  # tokens that they asked to judge
    accepted_tokens: int = 0  # of these, those that stood
    corrected: int = 0
    taught: int = 0  # positions whose law a device was told
    law_bytes: int = 0  # that took
    repeated: int = 0
    looked: int = 0  # pictures that were run for their spot checks alone
    late: int = 0
    full: int = 0
    evicted: int = 0
    failed: int = 0
    denied: Counter[str] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)  # by place among those to judge
    forward_seconds: Distribution = field(default_factory=_seconds)
    batch_spans: Distribution = field(default_factory=_counts)
    batch_tokens: Distribution = field(default_factory=_counts)
    queue_seconds: Distribution = field(default_factory=_seconds)
    open_seconds: Distribution = field(default_factory=_seconds)
    verify_seconds: Distribution = field(default_factory=_seconds)

    def batch(self, spans: int, tokens: int, forward_s: float) -> None:
        """Counts a forward."""
        self.forwards += 1
        self.spans += spans
        self.tokens += tokens
        self.forward_s += forward_s
        self.forward_seconds.observe(forward_s)
        self.batch_spans.observe(spans)
        self.batch_tokens.observe(tokens)

    def timed(self, answer: Answer, seconds: float) -> None:
        """Counts how long an answered request took from its arrival."""
        match answer:
            case Opened(cost=cost):
                self.queue_seconds.observe(cost.queue_s)
                self.open_seconds.observe(seconds)
            case Judged(cost=cost):
                self.queue_seconds.observe(cost.queue_s)
                self.verify_seconds.observe(seconds)
            case _:
                pass

    def count(self, answer: Answer, request: Request | None = None) -> None:
        """Counts an answer."""
        match answer:
            case Opened(tokens=tokens):
                self.opened += 1
                self.prefix_tokens += len(tokens)
            case Judged(accepted=accepted, confidences=judged, top_laws=laws):
                self.verified += 1
                self.judged += len(judged)
                self.taught += len(laws)
                self.law_bytes += len(pack_top_laws(laws))
                if isinstance(request, Backlog):
                    self._judged(request, accepted, len(judged))
            case Full():
                self.full += 1
            case Denied(reason=reason):
                self.denied[reason.value] += 1

    def _judged(self, request: Backlog, accepted: int, judged: int) -> None:
        """vLLM's counts: a draft is what a backlog asks to judge; bonus tokens do not count."""
        wrong = accepted < len(request.run)
        asked = int(np.count_nonzero(request.uncertain))
        self.corrected += wrong
        self.drafts += asked > 0
        self.draft_tokens += asked
        self.accepted_tokens += judged - wrong
        self.accepted_at.update(range(min(judged - wrong, _POSITIONS)))

    @property
    def tokens_per_forward(self) -> float:
        """Mean tokens of one forward, guidance rows not counted."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def forwards_per_s(self) -> float:
        """Forwards in one second of computing."""
        return self.forwards / self.forward_s if self.forward_s else 0.0

    def summary(self) -> dict[str, float | int | dict[str, int]]:
        """The numbers for a log line."""
        return {
            "forwards": self.forwards,
            "forwards_per_s": round(self.forwards_per_s, 1),
            "tokens_per_forward": round(self.tokens_per_forward, 2),
            "spans": self.spans,
            "opened": self.opened,
            "verified": self.verified,
            "judged": self.judged,
            "acceptance": round(self.accepted_tokens / max(self.draft_tokens, 1), 4),
            "corrected": self.corrected,
            "taught": self.taught,
            "law_bytes": self.law_bytes,
            "repeated": self.repeated,
            "looked": self.looked,
            "late": self.late,
            "full": self.full,
            "evicted": self.evicted,
            "failed": self.failed,
            "denied": dict(self.denied),
        }
