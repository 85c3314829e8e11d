"""A toy cloud model with an honest cache, and devices that draft against it."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloud_hub.engine.requests import (
    NO_LESSONS,
    Backlog,
    Lessons,
    Logits,
    Mask,
    Opening,
    Run,
    SessionKey,
    Tokens,
)
from cloud_hub.engine.runner import Span
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, sharpen
from fleet.ids import BootId, GenerationId, NodeId, RequestId, new_id
from fleet.protocol.arrays import FEATURE_BYTES
from fleet.protocol.messages import Sampling

POSITIONS = 16
VOCAB = 24
CODES = np.eye(VOCAB, dtype=np.float32)  # any two codes are √2 apart
SAMPLING = Sampling(temperature=1.0, top_k=8, guidance=2.0)


def toy_logits(caption: tuple[int, ...], run: Run, *, use_features: bool) -> Logits:
    """Logits [V] of the position after `run`: a hash of all that a cloud model may look at."""
    digest = hashlib.sha256(repr(caption).encode() + run.tokens.tobytes())
    if use_features and run.features.any():
        digest.update(run.features.tobytes())
    rng = np.random.default_rng(int.from_bytes(digest.digest()[:8], "little"))
    return (2 * rng.standard_normal(VOCAB)).astype(np.float32)


@dataclass
class ToyRunner:
    """Keeps what was run in each slot, so that a session's mistake in bookkeeping shows."""

    slots: int = 4
    positions: int = POSITIONS
    vocab_size: int = VOCAB
    batches: list[list[Span]] = field(default_factory=list)
    captions: dict[int, tuple[int, ...]] = field(default_factory=dict)
    fails: int = 0
    poisoned: int | None = None  # a slot whose logits are no numbers

    def __post_init__(self) -> None:
        self.tokens = np.full((self.slots, self.positions), -7, np.int64)
        self.features = np.zeros((self.slots, self.positions, FEATURE_BYTES), np.int8)

    def prepare(self, spans: Sequence[Span]) -> Callable[[], list[Logits]]:
        """See `Runner.prepare`."""
        return lambda: self.run(spans)

    def run(self, spans: Sequence[Span]) -> list[Logits]:
        """One forward."""
        if self.fails:
            self.fails -= 1
            raise RuntimeError("out of memory")
        assert len({span.slot for span in spans}) == len(spans)
        self.batches.append(list(spans))
        return [self._run(span) for span in spans]

    def told(self, caption: tuple[int, ...]) -> bytes:
        """See `Runner.told`."""
        return bytes(caption)

    def _run(self, span: Span) -> Logits:
        end = span.start + len(span.run)
        assert end <= self.positions
        rows = []
        if span.caption is not None:
            assert span.start == 0
            self.captions[span.slot] = span.caption
            rows.append(self._logits(span, 0))
        assert rows or len(span.run)
        self.tokens[span.slot, span.start : end] = span.run.tokens
        self.features[span.slot, span.start : end] = span.run.features
        rows += [self._logits(span, position) for position in range(span.start + 1, end + 1)]
        logits = np.stack(rows)
        return logits * np.nan if span.slot == self.poisoned else logits

    def _logits(self, span: Span, position: int) -> Logits:
        tokens = self.tokens[span.slot, :position]
        run = Run(tokens, tokens < 0, self.features[span.slot, :position])
        return toy_logits(self.captions[span.slot], run, use_features=span.use_features)


def run_of(tokens: Sequence[int], local: Sequence[bool] | None = None) -> Run:
    """A run; local tokens have a feature that names their token."""
    mask = np.array(local if local is not None else [False] * len(tokens), bool)
    features = np.zeros((len(tokens), FEATURE_BYTES), np.int8)
    for index, token in enumerate(tokens):
        features[index] = 1 + token if mask[index] else 0
    return Run(np.array(tokens, np.int64), mask, features)


def join(*runs: Run) -> Run:
    """Runs one after the other."""
    return Run(
        np.concatenate([run.tokens for run in runs]),
        np.concatenate([run.local for run in runs]),
        np.concatenate([run.features for run in runs]),
    )


EMPTY = run_of([])


def toy_draw(caption: tuple[int, ...], run: Run, seed: int, *, use_features: bool = True) -> int:
    """The cloud's draw after `run`."""
    sharp = sharpen(toy_logits(caption, run, use_features=use_features)[None], SAMPLING)
    return int(draw(sharp, gumbel(seed, np.array([len(run)], np.int64), VOCAB))[0])


def cloud_only(caption: tuple[int, ...], seed: int, count: int = POSITIONS) -> list[int]:
    """The picture that the cloud draws alone."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(toy_draw(caption, run_of(tokens), seed))
    return tokens


def opening(
    *,
    node: str = "n1",
    generation: str = "g1",
    request_id: str | None = None,
    caption: tuple[int, ...] = (3, 1, 4),
    seed: int = 7,
    prefix_tokens: int = 3,
    branch: int = 0,
    history: Run = EMPTY,
    deadline_s: float = 5.0,
    lessons: Lessons = NO_LESSONS,
    wants_condition: bool = False,
) -> Opening:
    """An opening with the tests' defaults."""
    return Opening(
        key=SessionKey(NodeId(node), GenerationId(generation)),
        request_id=RequestId(request_id or new_id()),
        boot=BootId("boot"),
        caption=caption,
        seed=seed,
        sampling=SAMPLING,
        use_features=True,
        prefix_tokens=prefix_tokens,
        branch=branch,
        history=history,
        deadline_s=deadline_s,
        lessons=lessons,
        wants_condition=wants_condition,
    )


def backlog(
    start: int,
    run: Run,
    uncertain: Sequence[bool] | Mask,
    *,
    node: str = "n1",
    generation: str = "g1",
    request_id: str | None = None,
    branch: int = 0,
    deadline_s: float = 5.0,
) -> Backlog:
    """A backlog with the tests' defaults."""
    return Backlog(
        key=SessionKey(NodeId(node), GenerationId(generation)),
        request_id=RequestId(request_id or new_id()),
        branch=branch,
        start=start,
        run=run,
        uncertain=np.array(uncertain, bool),
        deadline_s=deadline_s,
    )


def tokens_of(values: Sequence[int]) -> Tokens:
    """A token array."""
    return np.array(values, np.int64)
