"""The losses of a device model: pure functions of laws and intervals.

The sound arm (after Inter-DRO, arXiv:2603.25463): cross-entropy and L1 to the cloud's law anchor
the center; distributionally robust optimisation of the lower bound trains the center, not the
radius; the radius is a quantile of the log-odds error. There is no feature term, since the
hidden states of device and cloud differ in width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_TARGET_LOG_ODDS = 20.0
_BISECTIONS = 30


def divergence(target: Tensor, log_center: Tensor) -> Tensor:
    """Return KL(target || center) [N] of laws [N, V]."""
    terms: Tensor = torch.special.xlogy(target, target) - target * log_center
    return terms.sum(dim=-1)


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return half the L1 distance [...] of laws [..., V]."""
    return (first - second).abs().sum(dim=-1) / 2


def lower_bound_loss(target: Tensor, log_odds: Tensor, radius: Tensor) -> Tensor:
    """Return the cross-entropy [N] of targets [N, V] under the lower bound; no gradient to radii.

    With a live radius this term would shrink it fastest where the center is worst.
    """
    return (target * F.softplus(radius.detach() - log_odds)).sum(dim=-1)


def robust_weights(losses: Tensor, ball: float, cap: float) -> Tensor:
    """Return the weights [N], detached, that make the mean of losses [N] worst.

    The weights w = softmax(losses / eta) sum to one and lie at KL divergence `ball` (nats) from
    uniform; eta is found by bisection on its logarithm. Weights above `cap` times uniform are cut
    to it before a last normalisation.
    """
    losses = losses.detach().double()
    count = len(losses)
    shifted = losses - losses.max()
    low, high = torch.tensor(-14.0).double(), torch.tensor(14.0).double()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_far = _divergence_from_uniform(shifted / middle.exp()) > ball
        low, high = torch.where(too_far, middle, low), torch.where(too_far, high, middle)
    weights = (shifted / high.exp()).softmax(dim=0)
    weights = weights.clamp(max=cap / count)
    return (weights / weights.sum()).float()


def robust_loss(losses: Tensor, ball: float, cap: float) -> Tensor:
    """Return the worst-case mean of losses [N]; its gradient is that of fixed weights."""
    return (robust_weights(losses, ball, cap) * losses).sum()


def radius_loss(target: Tensor, log_odds: Tensor, radius: Tensor, coverage: float) -> Tensor:
    """Return the pinball loss [N] whose minimum is the `coverage`-quantile of the error.

    The error is that of the center's log-odds [N, V], and weighs by the mean of both laws; only
    the radius gets a gradient.
    """
    center = log_odds.detach()
    wanted = target_log_odds(target)
    missing = (wanted - center).abs() - radius
    pinball = torch.maximum(coverage * missing, (coverage - 1) * missing)
    weight = (target + center.sigmoid()) / 2
    return (weight * pinball).sum(dim=-1)


def target_log_odds(target: Tensor) -> Tensor:
    """Return the log-odds of a law [..., V], clamped to ±20."""
    odds = torch.logit(target.double()).float()
    return odds.clamp(-MAX_TARGET_LOG_ODDS, MAX_TARGET_LOG_ODDS)


def _divergence_from_uniform(logits: Tensor) -> Tensor:
    law = logits.log_softmax(dim=0)
    return (law.exp() * law).sum() + torch.log(torch.tensor(float(len(logits))).double())
