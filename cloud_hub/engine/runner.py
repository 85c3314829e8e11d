"""What one forward runs: spans of known tokens in slots of the KV cache. No policy in here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloud_hub.engine.requests import Logits, Run


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Tokens of one session, from position `start` on.

    With a `caption` (word ids) the slot begins a new picture: `start` is 0, the run may be
    empty, and the logits of position 0 come first.
    """

    slot: int
    start: int
    run: Run
    guidance: float
    use_features: bool
    caption: tuple[int, ...] | None = None

    @property
    def tokens(self) -> int:
        """Tokens that the forward takes for it; a caption counts as one."""
        return len(self.run) + (self.caption is not None)


class Runner(Protocol):
    """A cloud model with a KV cache of `slots` sessions; `TorchRunner`, and the tests' toy."""

    @property
    def slots(self) -> int:
        """Sessions that fit in the cache."""
        ...

    @property
    def positions(self) -> int:
        """Tokens of one picture."""
        ...

    @property
    def vocab_size(self) -> int:
        """Codes of the image tokenizer."""
        ...

    def prepare(self, spans: Sequence[Span]) -> Callable[[], list[Logits]]:
        """What runs all spans, of different slots, in one forward.

        What needs nothing of other forwards is done now: the last one may still be on its way.
        Forwards run one after the other, in any thread. One returns for each span the guided
        logits [n, V] of the positions start + 1 to start + n, after those of position 0 if the
        span begins a picture ([n + 1, V]).
        """
        ...

    def told(self, caption: tuple[int, ...]) -> bytes:
        """What a device without words of its own is told of a caption; empty: nothing."""
        ...
