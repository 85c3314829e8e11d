"""Pictures that cloud and device draw together, in lock-step, as far as calibration needs them.

One picture a caption and score: its uncertain tokens are those that this score finds. The cloud's
tokens are drawn from its law and the others from the device's, with noise of their own; shared
noise would only say how often both agree. The cloud reads no interval feature, since the adapter
is trained after the thresholds are found.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.decoding.uncertainty import perturbation
from fleet.models.branches import Branches
from fleet.models.checkpoint import DeviceParts
from fleet.models.interval_head import interval_law, scores
from fleet.models.transformer import Transformer
from fleet.prediction import SCORE_NAMES
from fleet.training.sampling import SamplingRule, sample

# What gets a threshold: the graph's scores, and the one that comes from its logits.
CALIBRATED = (*SCORE_NAMES, "perturbation")

Scores = NDArray[np.float64]
Asks = Callable[[Scores], NDArray[np.bool_]]


@dataclass(frozen=True)
class Pair:
    """A cloud model, its device model, and the tokenizer's codes [V, d] of length one."""

    cloud: Transformer
    device: DeviceParts
    codes: Tensor


@dataclass(frozen=True)
class Rule:
    """How pictures are begun and drawn: the injected prefix, and the sampling of both models."""

    prefix: int
    sampling: SamplingRule


@torch.inference_mode()
def draw_together(
    pair: Pair, captions: Tensor, rule: Rule, asks: Asks, generator: torch.Generator
) -> tuple[Scores, NDArray[np.bool_]]:
    """Draw one picture a caption [B, C] and score.

    Args:
        pair: The models.
        captions: Left-padded word ids.
        rule: Prefix and sampling.
        asks: Which of the pictures [B, S] ask the cloud, from their own scores [B, S] at one
            position; S scores, in the order of `CALIBRATED`.
        generator: Of the draws.

    Returns:
        Each picture's own scores after the prefix, and where it asked; both [B, S, T - prefix].
    """
    kinds, length = len(CALIBRATED), pair.cloud.config.n_token
    words = captions.repeat_interleave(kinds, dim=0).numpy()
    guidance = rule.sampling.guidance
    cloud = Branches.of_words(pair.cloud, words, guidance)
    device = Branches.of_words(pair.device.transformer, words, guidance)
    seen, asked = [], []
    for position in range(length):
        tokens = sample(torch.from_numpy(cloud.logits()), rule.sampling, generator)
        if position >= rule.prefix:
            logits = device.logits()
            own = _own_scores(pair, logits, device.hidden)
            uncertain = asks(own)
            drafts = sample(torch.from_numpy(logits), rule.sampling, generator)
            tokens = torch.where(torch.from_numpy(uncertain.ravel()), tokens, drafts)
            seen.append(own)
            asked.append(uncertain)
        if position + 1 < length:
            cloud.push(tokens.numpy())
            device.push(tokens.numpy())
    return np.stack(seen, axis=-1), np.stack(asked, axis=-1)


def _own_scores(pair: Pair, logits: NDArray[np.float32], hidden: Tensor) -> Scores:
    """Return of each picture the score that decides in it [B, S]."""
    law = interval_law(torch.from_numpy(logits), pair.device.head.radius(hidden))
    said = scores(law, pair.codes).double().numpy()
    rows = said.reshape(-1, len(CALIBRATED), len(SCORE_NAMES))
    own = np.diagonal(rows, axis1=1, axis2=2)
    tempered = perturbation(logits[len(SCORE_NAMES) :: len(CALIBRATED)])
    return np.concatenate([own, tempered[:, None]], axis=1)
