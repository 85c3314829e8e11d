"""What the engine did since it started, as plain numbers."""

from collections import Counter
from dataclasses import dataclass, field

from cloud_hub.engine.requests import Answer, Backlog, Denied, Full, Judged, Opened, Request


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
    corrected: int = 0
    repeated: int = 0
    late: int = 0
    full: int = 0
    evicted: int = 0
    failed: int = 0
    denied: Counter[str] = field(default_factory=Counter)

    def batch(self, spans: int, tokens: int, forward_s: float) -> None:
        """Counts a forward."""
        self.forwards += 1
        self.spans += spans
        self.tokens += tokens
        self.forward_s += forward_s

    def count(self, answer: Answer, request: Request | None = None) -> None:
        """Counts an answer."""
        match answer:
            case Opened(tokens=tokens):
                self.opened += 1
                self.prefix_tokens += len(tokens)
            case Judged(accepted=accepted, confidences=judged):
                self.verified += 1
                self.judged += len(judged)
                if isinstance(request, Backlog):
                    self.corrected += accepted < len(request.run)
            case Full():
                self.full += 1
            case Denied(reason=reason):
                self.denied[reason.value] += 1

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
            "corrected": self.corrected,
            "repeated": self.repeated,
            "late": self.late,
            "full": self.full,
            "evicted": self.evicted,
            "failed": self.failed,
            "denied": dict(self.denied),
        }
