"""The running average of a model's weights, which is what gets shipped."""

from collections.abc import Mapping

import torch
from torch import Tensor


class WeightAverage:
    """An exponential average whose memory grows with the run up to `decay`."""

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.weights = {name: value.detach().clone() for name, value in weights.items()}
        self._decay = decay

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Move the average towards a model's weights after its `step`-th step."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, value in weights.items():
            self.weights[name].lerp_(value, 1 - decay)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from an average saved before."""
        self.weights = {name: value.clone() for name, value in weights.items()}
