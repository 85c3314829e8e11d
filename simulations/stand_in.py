"""A pair of models that agree as often as one wants, and take the time that one wants.

Both draw by a hash of the tokens so far: what a picture needs of its models, without weights.
For measuring agent, protocol and engine where the shipped pair is only one case of many.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cloud_hub.engine.requests import Logits
from cloud_hub.engine.runner import Span
from edge_agent.device import Order
from edge_agent.drafts import Draft
from fleet.ids import ModelVersion
from fleet.models.bundle import Manifest
from fleet.models.caption import CaptionVocabulary
from fleet.prediction import FEATURE_SIZE
from fleet.protocol.messages import Sampling

GRID, VOCAB, PREFIX = 16, 64, 15
CAPTION = "a picture"
VOCABULARY = CaptionVocabulary(("<pad>", "<unk>", *CAPTION.split()))
SLOTS = 4

_CERTAIN = 1e4  # a logit that no noise overcomes


@dataclass(frozen=True, slots=True)
class Pair:
    """How two models get on with each other, and how long each takes.

    Attributes:
        acceptance: Share of the device's uncertain draws that are the cloud's too.
        uncertain: Share of draws that the device does not trust.
        step_s: Of the device, one token.
        forward_s: Of the cloud, one forward of any length.
    """

    acceptance: float
    uncertain: float = 0.3
    step_s: float = 0.0005
    forward_s: float = 0.008

    def cloud(self, tokens: Sequence[int]) -> int:
        """The cloud's draw after `tokens`."""
        return _hash("cloud", tokens) % VOCAB

    def device(self, tokens: Sequence[int]) -> int:
        """The device's draw after `tokens`."""
        differs = _share("agrees", tokens) >= self.acceptance
        return (self.cloud(tokens) + differs) % VOCAB

    def is_uncertain(self, tokens: Sequence[int]) -> bool:
        """Whether the device does not trust its draw after `tokens`."""
        return _share("trusts", tokens) < self.uncertain


@dataclass(frozen=True, slots=True)
class StandInDevice:
    """A `Device`."""

    pair: Pair

    size = GRID * GRID
    vocab_size = VOCAB
    keeps_states = False

    @property
    def manifest(self) -> Manifest:
        """See `Device.manifest`."""
        return Manifest(
            family="stand-in",
            device_version=ModelVersion("stand-in"),
            cloud_version=ModelVersion("stand-in"),
            grid=GRID,
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
            prefix_tokens=PREFIX,
            feature_scale=(1.0,) * FEATURE_SIZE,
            files=(),
        )

    def check(self, caption: str) -> None:
        """See `Device.check`."""
        VOCABULARY.encode(caption)

    def begin(self, order: Order) -> "StandInDrafter":
        """See `Device.begin`."""
        return StandInDrafter(self.pair, order)

    def quantise(self, features: NDArray[np.float32]) -> NDArray[np.int8]:
        """See `Device.quantise`."""
        return features.astype(np.int8)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """See `Device.decode`; one pixel that says which tokens they are."""
        digest = hashlib.blake2b(tokens.tobytes(), digest_size=3).digest()
        return np.frombuffer(digest, np.uint8).reshape(1, 1, 3)


@dataclass(slots=True)
class StandInDrafter:
    """A `Drafter`."""

    pair: Pair
    order: Order
    tokens: list[int] = field(default_factory=list)

    def step(self, position: int, previous: int) -> Draft:
        """See `Drafter.step`."""
        time.sleep(self.pair.step_s)
        self.tokens[max(position - 1, 0) :] = [previous] if position else []
        unsure = self.pair.is_uncertain(self.tokens)
        asks_all = self.order.policy.name == "verify_all"
        return Draft(
            token=self.pair.device(self.tokens),
            score=float(unsure),
            uncertain=asks_all or (unsure and self.order.policy.name != "device_only"),
            feature=np.zeros(FEATURE_SIZE, np.float32),
        )


@dataclass(slots=True)
class StandInRunner:
    """A `Runner`."""

    pair: Pair
    _tokens: dict[int, list[int]] = field(default_factory=dict)

    slots = SLOTS
    positions = GRID * GRID
    vocab_size = VOCAB

    def run(self, spans: Sequence[Span]) -> list[Logits]:
        """See `Runner.run`."""
        time.sleep(self.pair.forward_s)
        return [self._run(span) for span in spans]

    def _run(self, span: Span) -> Logits:
        tokens = self._tokens.setdefault(span.slot, [])
        del tokens[span.start :]
        rows = [self._row(tokens)] if span.caption is not None else []
        for token in span.run.tokens:
            tokens.append(int(token))
            rows.append(self._row(tokens))
        return np.stack(rows) if rows else np.zeros((0, VOCAB), np.float32)

    def _row(self, tokens: Sequence[int]) -> Logits:
        row = np.zeros(VOCAB, np.float32)
        row[self.pair.cloud(tokens)] = _CERTAIN
        return row


def _hash(what: str, tokens: Sequence[int]) -> int:
    """A number of 32 bits; the last tokens and the position say enough of a picture."""
    text = f"{what} {len(tokens)} {tokens[-8:]}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def _share(what: str, tokens: Sequence[int]) -> float:
    return _hash(what, tokens) / (1 << 32)
