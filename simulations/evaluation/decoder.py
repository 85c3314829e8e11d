"""The reference decoder: many pictures in lock-step, both models at every position.

At each position the device says its law and its scores; the method decides from them where
the cloud is asked; both draw with the same noise; the cloud's draw wins where it was asked.
That is the definition of what the fleet produces, without windows, requests or rollbacks
(CIAR, arXiv:2603.25463, with drafter-invariant verification, arXiv:2408.07978).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, guide, sharpen
from fleet.decoding.uncertainty import quantise_features, restore_features
from fleet.models.interval_head import feature_scalars, interval_law, scores
from fleet.models.spans import Span, SpanEngine
from fleet.prediction import FEATURE_SIZE, SCORE_NAMES
from simulations.evaluation.family import Family
from simulations.evaluation.methods import Method

PREFIX, LOCAL, VERIFIED, CORRECTED = range(4)  # decisions, as generation records have them

Tokens = NDArray[np.int64]
Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Finished pictures as tokens, with the story of each token.

    Attributes:
        tokens: [B, T].
        decisions: [B, T], 0 prefix, 1 local, 2 verified, 3 corrected.
        scores: [B, T, 5], in the order of `SCORE_NAMES`; NaN where no device looked.
    """

    tokens: Tokens
    decisions: NDArray[np.uint8]
    scores: NDArray[np.float32]


class LockStep:
    """One model on B pictures, all at the same position; two rows a picture under guidance."""

    def __init__(self, engine: SpanEngine, words: Tokens, guidance: float) -> None:
        self._engine = engine
        self._guidance = guidance
        self._count = len(words)
        branches = 2 if guidance > 1 else 1
        withheld = torch.arange(branches * self._count) >= self._count
        with torch.inference_mode():
            condition = engine.transformer.condition(
                torch.from_numpy(words).repeat(branches, 1), withheld
            )
            self._cache = engine.new_cache(len(withheld))
            self._cache.cells[:, 1, :, :, 0] = condition.value
            self._cache.bias[:, 0] = condition.log_n
        self._rows = condition.start  # [branches * B, D]
        self._position = 0

    @property
    def hidden(self) -> Tensor:
        """The conditional branch's hidden states [B, D]."""
        return self._rows[: self._count]

    def logits(self) -> Logits:
        """Guided logits [B, V] of the present position."""
        with torch.inference_mode():
            both = self._engine.transformer.output(self._rows).float().numpy()
        cond, uncond = both[: self._count], both[-self._count :]
        guided: Logits = guide(cond, uncond, self._guidance)
        return guided

    def push(self, tokens: Tokens, added: Tensor | None = None) -> None:
        """Go on by one token a picture [B], with `added` [B, D] on its embedding."""
        branches = len(self._rows) // self._count
        spans = [
            Span(row, self._position, token)
            for row, token in enumerate(np.tile(tokens, branches)[:, None])
        ]
        repeated = None if added is None else added.repeat(branches, 1)
        self._rows = self._engine.run(self._cache, spans, repeated)
        self._position += 1


class Decoder:
    """A family at work on one batch of captions by one method."""

    def __init__(self, family: Family, method: Method, captions: list[str], seeds: list[int]):
        words = family.words(captions)
        self._family = family
        self._method = method
        self._seeds = seeds
        guidance = method.sampling.guidance
        self._cloud = LockStep(family.cloud, words, guidance) if _needs_cloud(method) else None
        self._device = LockStep(family.device, words, guidance) if _needs_device(method) else None
        size, length, vocab = len(seeds), family.tokens, family.cloud.config.vocab_size
        positions = np.arange(length, dtype=np.int64)
        self._noise = np.stack([gumbel(seed, positions, vocab) for seed in seeds])
        self._tokens = np.zeros((size, length), np.int64)
        self._decisions = np.zeros((size, length), np.uint8)
        self._scores = np.full((size, length, len(SCORE_NAMES)), np.nan, np.float32)

    def run(self, on_position: Callable[[int], None] | None = None) -> Drawn:
        """All positions, one after the other."""
        for position in range(self._family.tokens):
            local, law = self._decide(position)
            self._advance(position, local, law)
            if on_position is not None:
                on_position(position)
        return Drawn(self._tokens, self._decisions, self._scores)

    def _decide(self, position: int) -> tuple[NDArray[np.bool_], "DeviceLaw | None"]:
        """Settle the tokens at `position`; returns which are local, and what the device saw."""
        drafts, law = self._draft(position)
        if position < self._method.prefix:
            asked, decision = np.ones(len(self._seeds), bool), PREFIX
        else:
            asked = self._method.asks(position, self._scores[:, position], self._seeds)
            decision = VERIFIED
        own = self._draw(self._cloud, position) if asked.any() else drafts
        settled = np.where(asked, own, drafts)
        self._tokens[:, position] = settled
        corrected = asked & (settled != drafts) & (decision != PREFIX)
        self._decisions[:, position] = np.where(asked, decision, LOCAL)
        self._decisions[corrected, position] = CORRECTED
        return ~asked, law

    def _draft(self, position: int) -> tuple[Tokens, "DeviceLaw | None"]:
        if self._device is None:
            return np.full(len(self._seeds), -1, np.int64), None
        logits = self._device.logits()
        if self._method.kind != "device":
            law = DeviceLaw.of(self._family, logits, self._device.hidden)
            self._scores[:, position] = law.scores
        else:
            law = None
        return self._pick(logits, position), law

    def _draw(self, model: LockStep | None, position: int) -> Tokens:
        assert model is not None
        return self._pick(model.logits(), position)

    def _pick(self, logits: Logits, position: int) -> Tokens:
        return draw(sharpen(logits, self._method.sampling), self._noise[:, position])

    def _advance(self, position: int, local: NDArray[np.bool_], law: "DeviceLaw | None") -> None:
        if position + 1 == self._family.tokens:
            return
        tokens = self._tokens[:, position]
        if self._device is not None:
            self._device.push(tokens)
        if self._cloud is not None:
            added = None
            if law is not None and self._method.use_features and local.any():
                added = law.input_feature(self._family, self._method, tokens, local)
            self._cloud.push(tokens, added)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLaw:
    """What the device says at one position, for B pictures."""

    logits: Tensor  # [B, V], guided
    hidden: Tensor  # [B, D]
    radius: Tensor  # [B, V]
    scores: NDArray[np.float32]  # [B, 5]

    @classmethod
    @torch.inference_mode()
    def of(cls, family: Family, logits: Logits, hidden: Tensor) -> "DeviceLaw":
        """The interval law of guided logits [B, V] and the conditional hidden states [B, D]."""
        center, radius = torch.from_numpy(logits), family.parts.head.radius(hidden)
        found = scores(interval_law(center, radius), family.codes)
        return cls(center, hidden, radius, found.numpy())

    @torch.inference_mode()
    def input_feature(
        self, family: Family, method: Method, tokens: Tokens, local: NDArray[np.bool_]
    ) -> Tensor:
        """What the cloud adds to its embeddings [B, D]: zero where a token is not local.

        The features pass through the int8 steps that they have on the wire.
        """
        law = interval_law(self.logits, self.radius)
        score = torch.from_numpy(self.scores[:, SCORE_NAMES.index(method.score)])
        # Without a threshold there is no margin: 0, as the device has it.
        has_bar = method.kind == "score" and math.isfinite(method.threshold)
        bar = method.threshold if has_bar else math.nan
        scalars = feature_scalars(law, torch.from_numpy(tokens), score, bar)
        features: Tensor = family.projection(scalars.nan_to_num(0.0), self.hidden)
        scale = family.feature.scale.numpy()
        sent = restore_features(quantise_features(features.numpy(), scale), scale)
        sent[~local] = 0
        assert sent.shape == (len(tokens), FEATURE_SIZE)
        added: Tensor = family.feature(torch.from_numpy(sent))
        return added


def decode(
    family: Family,
    method: Method,
    captions: list[str],
    seeds: list[int],
    on_position: Callable[[int], None] | None = None,
) -> Drawn:
    """Pictures of `captions` with `seeds` by `method`, as tokens."""
    return Decoder(family, method, captions, seeds).run(on_position)


def _needs_cloud(method: Method) -> bool:
    return method.kind != "device" or method.prefix > 0


def _needs_device(method: Method) -> bool:
    return method.kind != "cloud"
