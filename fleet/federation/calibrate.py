"""How much wider radii must be to cover what they should, by samples that they have not seen.

Radii that were trained on the samples that the center was trained on are too narrow: there the
center errs less than elsewhere. One factor, found on samples of which neither has seen any,
repairs that and leaves the radii's shape (conformalised quantile regression, arXiv:1905.03222,
with a factor for its shift).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fleet.federation.head import HeadChange
from fleet.federation.samples import Samples
from fleet.federation.train import center_and_radius, whole_law
from fleet.federation.validate import MOST_STRETCH
from fleet.interval import MAX_RADIUS
from fleet.models.interval_head import log_odds
from fleet.training.device import COVERAGE
from fleet.training.losses import error_weights, target_log_odds

_MOST_ROWS = 1024
_HALVINGS = 12  # of the range of factors: to a part in three thousand


@torch.no_grad()
def needed_stretch(change: HeadChange, samples: Samples) -> float:
    """The factor on what goes into the radii's softplus with which they cover `COVERAGE`.

    Coverage counts as the radius's loss does: by the mean of both laws. The factor is between
    1 / `MOST_STRETCH` and `MOST_STRETCH`.

    Args:
        change: Trained.
        samples: Not trained on; at least one. The newest `_MOST_ROWS` count.
    """
    samples = samples[-_MOST_ROWS:]
    center, radius = center_and_radius(change, samples)
    odds = log_odds(center)
    target = whole_law(samples, center.log_softmax(dim=-1))
    error = (target_log_odds(target) - odds).abs()
    weight = error_weights(target, odds)
    weight = weight / weight.sum()
    before = radius + torch.log(-torch.expm1(-radius))  # softplus, turned round
    low, high = -math.log(MOST_STRETCH), math.log(MOST_STRETCH)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        wider = F.softplus(math.exp(middle) * before).clamp(max=MAX_RADIUS)
        if _mass(weight, error <= wider) < COVERAGE:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def _mass(weight: Tensor, inside: Tensor) -> float:
    return float((weight * inside).sum())
