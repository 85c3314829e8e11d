"""The adapter that turns a device's interval features into an addition to the cloud's input."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.models.layers import NORM_EPS
from fleet.prediction import FEATURE_SCALARS, FEATURE_SIZE

HIDDEN = 256
FEATURE_LIMIT = 127


class FeatureProjection(nn.Module):
    """The device's half: the scalars [..., 16] and a projected hidden state make 48 numbers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, FEATURE_SIZE - FEATURE_SCALARS, bias=False)

    def forward(self, scalars: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([scalars, self.project(hidden)], dim=-1)


class IntervalFeature(nn.Module):
    """The cloud's half: 48 numbers to an input feature [..., D]; zeros give exactly zeros.

    No layer has a bias, so a token without a feature leaves the cloud as it is; neither does a
    fresh adapter change anything, since its last matrix is zero.
    """

    scale: Tensor  # [48], the size of one int8 step of each number

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(FEATURE_SIZE))
        self.w_in = nn.Linear(FEATURE_SIZE, HIDDEN, bias=False)
        self.w_out = nn.Linear(HIDDEN, dim, bias=False)
        self.register_buffer("scale", torch.ones(FEATURE_SIZE))
        nn.init.zeros_(self.w_out.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Return the input feature [..., D] of restored features [..., 48]."""
        size = torch.rsqrt(features.square().mean(dim=-1, keepdim=True) + NORM_EPS)
        added: Tensor = self.w_out(F.silu(self.w_in(features * size * self.norm)))
        return added

    def quantised(self, features: Tensor) -> Tensor:
        """Return features as they arrive after int8; gradients pass as if nothing happened."""
        steps = (features / self.scale).round().clamp(-FEATURE_LIMIT, FEATURE_LIMIT)
        return features + (steps * self.scale - features).detach()

    def set_scale(self, features: Tensor) -> None:
        """Choose the steps such that the features [N, 48] seen fill the int8 range."""
        largest = features.detach().abs().quantile(0.999, dim=0)
        self.scale.copy_(largest.clamp(min=1e-6) / FEATURE_LIMIT)
