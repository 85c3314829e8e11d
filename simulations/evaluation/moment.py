"""One position of a batch: what both models say there, computed once and only when asked for."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.decoding.noise import Stream, coin, gumbel, uniform
from fleet.decoding.sampling import draw, law, sharpen
from fleet.decoding.uncertainty import perturbation, quantise_features, restore_features
from fleet.models.branches import Branches, Logits, Tokens
from fleet.models.interval_head import feature_scalars, interval_law, scores
from fleet.prediction import FEATURE_SIZE, SCORE_NAMES, PolicyScore, ScoreName
from simulations.evaluation.family import Family
from simulations.evaluation.sampling_rule import SamplingRule

# How a token came about; the first four are the codes of generation records.
PREFIX, LOCAL, VERIFIED, CORRECTED = range(4)  # PREFIX: drawn by the cloud without a draft
AMENDED = 5  # kept by the device, replaced by the hub in passing

Laws = NDArray[np.float64]
_LUCK = 64  # uniform numbers a position has for its rules


class Luck:
    """The random numbers of a batch of pictures, functions of their seeds alone."""

    def __init__(self, seeds: list[int], length: int, vocab_size: int) -> None:
        self.seeds = seeds
        self._positions = np.arange(length, dtype=np.int64)
        self._vocab_size = vocab_size

    @cached_property
    def shared(self) -> NDArray[np.float32]:
        """Gumbel noise [B, T, V] that device and cloud both draw with."""
        return self._gumbel(Stream.DRAW)

    @cached_property
    def other(self) -> NDArray[np.float32]:
        """Gumbel noise [B, T, V], independent of the shared one."""
        return self._gumbel(Stream.CORRECT)

    @cached_property
    def coins(self) -> Laws:
        """The coins [B, T] of the policy "random"."""
        return np.stack([coin(seed, self._positions) for seed in self.seeds])

    @cached_property
    def uniforms(self) -> Laws:
        """Uniform numbers [B, T, 64] for acceptances."""
        return np.stack(
            [uniform(seed, self._positions, _LUCK, Stream.ACCEPT) for seed in self.seeds]
        )

    def _gumbel(self, stream: Stream) -> NDArray[np.float32]:
        return np.stack(
            [gumbel(seed, self._positions, self._vocab_size, stream) for seed in self.seeds]
        )


@dataclass(eq=False)
class Moment:
    """A position of B pictures, as a rule sees it."""

    family: Family
    sampling: SamplingRule
    luck: Luck
    position: int
    device: Branches | None
    cloud: Branches | None

    @property
    def seeds(self) -> list[int]:
        """The pictures' seeds."""
        return self.luck.seeds

    @cached_property
    def said(self) -> "DeviceLaw":
        """The device's interval law and scores."""
        assert self.device is not None
        return DeviceLaw.of(self.family, self._device_guided, self.device.hidden)

    @cached_property
    def drafts(self) -> Tokens:
        """The device's draws [B] with the shared noise."""
        return draw(self._device_sharp, self.luck.shared[:, self.position])

    @cached_property
    def own(self) -> Tokens:
        """The cloud's draws [B] with the shared noise."""
        return draw(self._cloud_sharp, self.luck.shared[:, self.position])

    @cached_property
    def device_law(self) -> Laws:
        """The law [B, V] that the device draws from."""
        return law(self._device_sharp).astype(np.float64)

    @cached_property
    def cloud_law(self) -> Laws:
        """The law [B, V] that the cloud draws from."""
        return law(self._cloud_sharp).astype(np.float64)

    @property
    def uniforms(self) -> Laws:
        """This position's uniform numbers [B, 64]."""
        return self.luck.uniforms[:, self.position]

    def score(self, name: PolicyScore) -> NDArray[np.floating]:
        """What a policy compares [B]."""
        match name:
            case "random":
                return self.luck.coins[:, self.position]
            case "perturbation":
                return perturbation(self._device_guided)
            case _:
                return self.said.score(name)

    def draw_other(self, laws: Laws, rows: NDArray[np.int64]) -> Tokens:
        """Tokens [n] of laws [n, V] for the pictures `rows`, with noise that no draft has seen."""
        with np.errstate(divide="ignore"):
            return draw(np.log(laws), self.luck.other[rows, self.position])

    @cached_property
    def _device_guided(self) -> Logits:
        assert self.device is not None
        return self.device.logits()

    @cached_property
    def _device_sharp(self) -> Logits:
        return sharpen(self._device_guided, self.sampling)

    @cached_property
    def cloud_guided(self) -> Logits:
        """The cloud's guided logits [B, V]."""
        assert self.cloud is not None
        return self.cloud.logits()

    @cached_property
    def _cloud_sharp(self) -> Logits:
        return sharpen(self.cloud_guided, self.sampling)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLaw:
    """What the device says at one position, for B pictures."""

    logits: Tensor  # [B, V], guided
    hidden: Tensor  # [B, D]
    radius: Tensor  # [B, V]
    scores: NDArray[np.float32]  # [B, scores]

    @classmethod
    @torch.inference_mode()
    def of(cls, family: Family, logits: Logits, hidden: Tensor) -> "DeviceLaw":
        """The interval law of guided logits [B, V] and the conditional hidden states [B, D]."""
        center, radius = torch.from_numpy(logits), family.parts.head.radius(hidden)
        found = scores(interval_law(center, radius), family.codes)
        return cls(center, hidden, radius, found.numpy())

    def score(self, name: ScoreName) -> NDArray[np.float32]:
        """One score [B]."""
        return self.scores[:, SCORE_NAMES.index(name)]

    @torch.inference_mode()
    def input_feature(
        self,
        family: Family,
        tokens: Tokens,
        local: NDArray[np.bool_],
        bar: tuple[PolicyScore, float],
    ) -> Tensor:
        """What the cloud adds to its embeddings [B, D]: zero where a token is not local.

        `bar`: the score that decides and its threshold; an infinite one is no margin, as on the
        device. The features pass through the int8 steps that they have on the wire.
        """
        law = interval_law(self.logits, self.radius)
        name, threshold = bar
        column = SCORE_NAMES.index(name) if name in SCORE_NAMES else 0
        score = torch.from_numpy(self.scores[:, column])
        margin_from = threshold if np.isfinite(threshold) else np.nan
        scalars = feature_scalars(law, torch.from_numpy(tokens), score, margin_from)
        features: Tensor = family.projection(scalars.nan_to_num(0.0), self.hidden)
        scale = family.feature.scale.numpy()
        sent = restore_features(quantise_features(features.numpy(), scale), scale)
        sent[~local] = 0
        assert sent.shape == (len(tokens), FEATURE_SIZE)
        added: Tensor = family.feature(torch.from_numpy(sent))
        return added
