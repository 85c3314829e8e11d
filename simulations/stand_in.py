"""A pair of models that agree as often as one wants, and take the time that one wants.

Both draw by the picture's noise and a hash of its last tokens: what a picture needs of its models,
without weights. For measuring agent, protocol and engine where the shipped pair is only one case
of many, and for worlds of many devices. They spend their time asleep, so they follow any clock.
"""

import hashlib
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from cloud_hub.app import Hub
from cloud_hub.engine.requests import Logits
from cloud_hub.engine.runner import Span
from cloud_hub.presence import Identity
from cloud_hub.store.database import Database
from cloud_hub.verification import Service
from edge_agent.device import Order
from edge_agent.drafts import Draft
from fleet.decoding.noise import gumbel
from fleet.ids import BootId, ModelVersion, WorkerId
from fleet.models.bundle import Manifest
from fleet.models.caption import CaptionVocabulary
from fleet.prediction import FEATURE_SIZE
from fleet.protocol.messages import Sampling

FAMILY, VERSION = "stand-in", ModelVersion("stand-in")
DEVICE_VERSION = ModelVersion("0" * 16)
GRID, VOCAB = 16, 64
CAPTION = "a picture"
VOCABULARY = CaptionVocabulary(("<pad>", "<unk>", *CAPTION.split()))
SLOTS = 4

_HASHED = 8  # tokens
_WORDS = 1 << 32  # that a hash may be
_LUCK, _TRUST = 0x9E3779B9, 0x3C6EF372  # questions about a word, beside the one of its half
_NEVER = -1e4  # a logit that no noise overcomes
_HALVES = np.where(np.arange(VOCAB) % 2 == np.arange(2)[:, None], 0, _NEVER).astype(np.float32)
_NO_FEATURE = np.zeros(FEATURE_SIZE, np.float32)


@dataclass(frozen=True, slots=True)
class Pair:
    """How two models get on with each other, and how long each takes.

    Attributes:
        acceptance: Share of the device's uncertain draws that are the cloud's too.
        uncertain: Share of draws that the device does not trust.
        step_s: Of the device, one token.
        forward_s: Of the cloud, one forward of any length.
        token_s: Of the cloud, each token of a forward.
        request_s: Of the cloud, each picture in a forward.
        begin_s: Of the device, before a picture.
        decode_s: Of the device, from tokens to pixels.
    """

    acceptance: float
    uncertain: float = 0.3
    step_s: float = 0.0005
    forward_s: float = 0.008
    token_s: float = 0.0
    request_s: float = 0.0
    begin_s: float = 0.0
    decode_s: float = 0.0


def prefix_of(grid: int) -> int:
    """Tokens that the cloud injects: as in the shipped family, 15 of 256."""
    return grid * grid * 15 // 256


@dataclass(frozen=True, slots=True)
class StandInDevice:
    """A `Device`; captions of a style in `styles` follow that pair, the others `pair`."""

    pair: Pair
    grid: int = GRID
    vocabulary: CaptionVocabulary = VOCABULARY
    styles: Mapping[str, Pair] = field(default_factory=dict)
    version: ModelVersion = DEVICE_VERSION

    vocab_size = VOCAB
    keeps_states = False

    @property
    def size(self) -> int:
        """See `Device.size`."""
        return self.grid * self.grid

    @property
    def manifest(self) -> Manifest:
        """See `Device.manifest`."""
        return _manifest(self.grid, self.version)

    def worse(self, version: ModelVersion, acceptance: float) -> "StandInDevice":
        """Another version, of whose drafts so many are the cloud's."""
        styles = {name: replace(pair, acceptance=acceptance) for name, pair in self.styles.items()}
        pair = replace(self.pair, acceptance=acceptance)
        return replace(self, version=version, pair=pair, styles=styles)

    def check(self, caption: str) -> None:
        """See `Device.check`."""
        self.vocabulary.encode(caption)

    def wants(self, caption: str) -> bool:  # noqa: ARG002 - it reads captions itself
        """See `Device.wants`."""
        return False

    def tell(self, caption: str, condition: bytes) -> None:
        """See `Device.tell`."""

    def begin(self, order: Order) -> "StandInDrafter":
        """See `Device.begin`."""
        pair = self.styles.get(order.caption.partition(":")[0], self.pair)
        time.sleep(pair.begin_s)
        return StandInDrafter(pair, order.policy.name, _draws(order.seed, self.size))

    def quantise(self, features: NDArray[np.float32]) -> NDArray[np.int8]:
        """See `Device.quantise`."""
        return features.astype(np.int8)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """See `Device.decode`; one pixel that says which tokens they are."""
        time.sleep(self.pair.decode_s)
        return pixel(tokens)

    def alone(self, caption: str, seed: int, policy: str, prefix: int) -> NDArray[np.int64]:
        """The tokens of a picture under a policy that nothing disturbs; takes no time."""
        pair = self.styles.get(caption.partition(":")[0], self.pair)
        draws, tokens = _draws(seed, self.size), bytearray()
        for position in range(self.size):
            half, luck, trust = _answers(tokens)
            asks = policy == "verify_all" or trust < pair.uncertain
            is_judged = policy != "device_only" and (position < prefix or asks)
            token = draws[half][position]
            agrees = is_judged or luck < pair.acceptance
            tokens.append(token if agrees else (token + 1) % VOCAB)
        return np.frombuffer(tokens, np.uint8).astype(np.int64)


def pixel(tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The picture [1, 1, 3] of some tokens."""
    digest = hashlib.blake2b(tokens.tobytes(), digest_size=3).digest()
    return np.frombuffer(digest, np.uint8).reshape(1, 1, 3)


@dataclass(slots=True)
class StandInDrafter:
    """A `Drafter`."""

    pair: Pair
    policy: str
    draws: tuple[list[int], list[int]]
    tokens: bytearray = field(default_factory=bytearray)

    def step(self, position: int, previous: int) -> Draft:
        """See `Drafter.step`."""
        time.sleep(self.pair.step_s)
        self.tokens[max(position - 1, 0) :] = bytes((previous,)) if position else b""
        pair, policy = self.pair, self.policy
        half, luck, trust = _answers(self.tokens)
        token = self.draws[half][position]
        return Draft(
            token if luck < pair.acceptance else (token + 1) % VOCAB,
            1 - trust,
            policy == "verify_all" or (trust < pair.uncertain and policy != "device_only"),
            _NO_FEATURE,
        )


@dataclass(slots=True)
class StandInRunner:
    """A `Runner`; a scenario may slow it down or break it."""

    pair: Pair
    slots: int = SLOTS
    positions: int = GRID * GRID
    times: float = 1.0  # as long as the pair says
    is_broken: bool = False
    forwards: int = 0  # so far, with the pictures and tokens in them
    spans: int = 0
    tokens: int = 0
    _tokens: dict[int, bytearray] = field(default_factory=dict)

    vocab_size = VOCAB

    def prepare(self, spans: Sequence[Span]) -> Callable[[], list[Logits]]:
        """See `Runner.prepare`."""
        return partial(self._forward, spans)

    def _forward(self, spans: Sequence[Span]) -> list[Logits]:
        tokens, pair = sum(span.tokens for span in spans), self.pair
        self.forwards, self.spans = self.forwards + 1, self.spans + len(spans)
        self.tokens += tokens
        seconds = pair.forward_s + tokens * pair.token_s + len(spans) * pair.request_s
        time.sleep(seconds * self.times)
        if self.is_broken:
            raise ArithmeticError("this worker is broken")
        return [self._run(span) for span in spans]

    def told(self, caption: tuple[int, ...]) -> bytes:  # noqa: ARG002 - as the interface has it
        """See `Runner.told`; its devices read captions themselves."""
        return b""

    def _run(self, span: Span) -> Logits:
        tokens = self._tokens.setdefault(span.slot, bytearray())
        del tokens[span.start :]
        rows = [_half(tokens)] if span.caption is not None else []
        for token in span.run.tokens.tolist():
            tokens.append(token)
            rows.append(_half(tokens))
        return _HALVES[rows]


def stand_in_hub(runner: StandInRunner, vocabulary: CaptionVocabulary, database: Database) -> Hub:
    """A hub on the pair's cloud model, with a database that is ready."""
    return worker_of(runner, vocabulary, WorkerId("w-stand-in"), BootId("stand-in"), database)


def worker_of(
    runner: StandInRunner,
    vocabulary: CaptionVocabulary,
    worker: WorkerId,
    boot: BootId,
    database: Database | None,
) -> Hub:
    """A worker of that name and boot; it records if it has a database."""
    return Hub(
        Identity(worker, boot, FAMILY, VERSION, VERSION),
        Service(worker, FAMILY, VERSION, runner.positions, runner.vocab_size, vocabulary),
        runner,
        np.eye(VOCAB, dtype=np.float32),
        database,
    )


@cache
def _manifest(grid: int, device_version: ModelVersion) -> Manifest:
    return Manifest(
        family=FAMILY,
        device_version=device_version,
        cloud_version=VERSION,
        grid=grid,
        picture_size=1,
        vocab_size=VOCAB,
        caption_positions=2,
        layers=1,
        heads=1,
        head_dim=1,
        sampling=Sampling(temperature=1, top_k=0, guidance=1),
        score="entropy",
        thresholds={"entropy": 0.5},
        budget=0.3,
        prefix_tokens=prefix_of(grid),
        feature_scale=(1.0,) * FEATURE_SIZE,
        files=(),
    )


def _draws(seed: int, size: int) -> tuple[list[int], list[int]]:
    """At each position the draw from either half of the codes, by the picture's noise."""
    noise = gumbel(seed, np.arange(size), VOCAB)
    even, odd = (np.argmax(noise + half, axis=1).tolist() for half in _HALVES)
    return even, odd


def _answers(tokens: bytearray) -> tuple[int, float, float]:
    """What both models make of a picture's tokens so far.

    From which half of the codes the cloud draws next (0 or 1); luck, below `acceptance` where the
    device draws the same; trust, below `uncertain` where the device does not trust its draw.
    """
    word = _word(tokens)
    return _mixed(word) & 1, _mixed(word ^ _LUCK) / _WORDS, _mixed(word ^ _TRUST) / _WORDS


def _half(tokens: bytearray) -> int:
    """The first of `_answers`."""
    return _mixed(_word(tokens)) & 1


def _word(tokens: bytearray) -> int:
    """32 bits: the last tokens and the position say enough of a picture."""
    return zlib.crc32(tokens[-_HASHED:], len(tokens))


def _mixed(word: int) -> int:
    """A checksum is linear: the mixing (Mueller's) makes the answers independent."""
    word = ((word >> 16) ^ word) * 0x45D9F3B & 0xFFFFFFFF
    word = ((word >> 16) ^ word) * 0x45D9F3B & 0xFFFFFFFF
    return (word >> 16) ^ word
