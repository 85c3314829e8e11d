"""The losses of a device model: pure functions of laws and intervals.

The sound arm (after Inter-DRO, arXiv:2603.25463): cross-entropy and L1 to the cloud's law anchor
the center; distributionally robust optimisation of the lower bound trains the center, not the
radius; the radius is a quantile of the log-odds error. There is no feature term, since the
hidden states of device and cloud differ in width.

The faithful arm is Inter-DRO as published: anchors of all three laws and the robust term of the
lower one, all of them with live radii.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_TARGET_LOG_ODDS = 20.0
_BISECTIONS = 30

RobustForm = Literal["ball", "penalised", "cvar"]


@dataclass(frozen=True)
class Robust:
    """The worst mean of losses over weights near uniform, and how near.

    Attributes:
        form: "ball": within `ball` nats of uniform (KL divergence); "penalised": any weights, at
            a price of their divergence over `alpha`; "cvar": the mean of the worst `share`.
        cap: No weight exceeds so many times uniform; at least 1.
    """

    form: RobustForm = "ball"
    ball: float = 0.3  # nats: an effective sample of about 74%
    alpha: float = 1.0
    share: float = 0.5
    cap: float = 10.0

    def weights(self, losses: Tensor) -> Tensor:
        """Return the weights [N], detached, that make the mean of losses [N] worst."""
        match self.form:
            case "ball":
                return robust_weights(losses, self.ball, self.cap)
            case "penalised":
                return capped(penalised_weights(losses, self.alpha), self.cap)
            case "cvar":
                # Each of the worst has 1 / share times uniform, so the cap is on the share.
                return cvar_weights(losses, max(self.share, 1 / max(self.cap, 1.0)))

    def loss(self, losses: Tensor) -> Tensor:
        """Return the worst mean of losses [N]; its gradient is that of fixed weights."""
        return (self.weights(losses) * losses).sum()


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
    return cross_entropy(target, F.logsigmoid(log_odds - radius.detach()))


def cross_entropy(target: Tensor, log_law: Tensor) -> Tensor:
    """Return the cross-entropy [N] of targets [N, V] under a law, or a bound, given as a log."""
    return -(target * log_law).sum(dim=-1)


def faithful_loss(
    target: Tensor, log_odds: Tensor, radius: Tensor, robust: Robust
) -> dict[str, Tensor]:
    """Return the terms of Inter-DRO as published (arXiv:2603.25463), means over [N, V].

    Each of the center, upper and lower law p' is anchored by |p' - p| and 0.1 cross-entropies;
    the center is aligned by KL(p || center), the lower law's cross-entropy is made robust. Only
    the weights are constants: live ones would give the worst case a gradient of the wrong sign.
    """
    logs = {
        "center": F.logsigmoid(log_odds),
        "upper": F.logsigmoid(log_odds + radius),
        "lower": F.logsigmoid(log_odds - radius),
    }
    terms = {}
    for name, log_law in logs.items():
        distance = (log_law.exp() - target).abs().sum(dim=-1)
        terms[name] = (distance + 0.1 * cross_entropy(target, log_law)).mean()
    terms["aligned"] = divergence(target, logs["center"]).mean()
    terms["robust"] = robust.loss(cross_entropy(target, logs["lower"]))
    return terms


def robust_weights(losses: Tensor, ball: float, cap: float) -> Tensor:
    """Return the weights [N], detached, that make the mean of losses [N] worst.

    The weights w = softmax(losses / eta) sum to one and lie at KL divergence `ball` (nats) from
    uniform; eta is found by bisection on its logarithm. See `capped` for the cap.
    """
    losses = losses.detach().double()
    shifted = losses - losses.max()
    low, high = torch.tensor(-14.0).double(), torch.tensor(14.0).double()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_far = _divergence_from_uniform(shifted / middle.exp()) > ball
        low, high = torch.where(too_far, middle, low), torch.where(too_far, high, middle)
    return capped((shifted / high.exp()).softmax(dim=0), cap).float()


def penalised_weights(losses: Tensor, alpha: float) -> Tensor:
    """Return softmax(alpha losses) [N], detached: the worst case at a price of KL / alpha.

    It is the gradient of `penalised_value`, the worst case's closed form.
    """
    return (alpha * losses.detach()).softmax(dim=0)


def penalised_value(losses: Tensor, alpha: float) -> Tensor:
    """Return max over w of sum w losses - KL(w || uniform) / alpha, for losses [N]."""
    return (alpha * losses).logsumexp(dim=0).sub(math.log(len(losses))) / alpha


def cvar_weights(losses: Tensor, share: float) -> Tensor:
    """Return the weights [N], detached, of the mean of the worst `share` of losses [N].

    The last of them counts in part, so that the weights sum to one for any share.
    """
    count, worst = len(losses), losses.detach().argsort(descending=True)
    left = share * count - torch.arange(count, device=losses.device)
    weights = torch.zeros_like(losses)
    weights[worst] = left.clamp(0, 1).to(losses.dtype) / (share * count)
    return weights


def capped(weights: Tensor, cap: float) -> Tensor:
    """Return the weights [N] with none above `cap` times uniform, and the same sum of one.

    What is cut off goes to the others in proportion, as often as that lifts one over the cap: of
    all weights within the cap these are the nearest in KL divergence.
    """
    limit = max(cap, 1.0) / len(weights)
    ranked, order = weights.sort(descending=True)
    rest = ranked.flip(0).cumsum(0).flip(0)  # of each and all smaller ones
    index = torch.arange(len(weights), device=weights.device)
    scale = (1 - index * limit) / rest.clamp(min=torch.finfo(weights.dtype).tiny)
    # The first k are cut, k the smallest for which the next one, scaled up, fits.
    fits = (ranked * scale <= limit * (1 + 1e-12)).nonzero()
    cut = int(fits[0]) if len(fits) else len(weights)
    result = torch.empty_like(weights)
    scaled = ranked * scale[min(cut, len(weights) - 1)]
    result[order] = torch.where(index < cut, torch.full_like(ranked, limit), scaled)
    return result


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
    return (error_weights(target, center) * pinball).sum(dim=-1)


def error_weights(target: Tensor, log_odds: Tensor) -> Tensor:
    """Return how much an error in each log-odds [..., V] counts: by the mean of both laws."""
    return (target + log_odds.sigmoid()) / 2


def target_log_odds(target: Tensor) -> Tensor:
    """Return the log-odds of a law [..., V], clamped to ±20."""
    odds = torch.logit(target.double()).float()
    return odds.clamp(-MAX_TARGET_LOG_ODDS, MAX_TARGET_LOG_ODDS)


def _divergence_from_uniform(logits: Tensor) -> Tensor:
    law = logits.log_softmax(dim=0)
    return (law.exp() * law).sum() + torch.log(torch.tensor(float(len(logits))).double())
