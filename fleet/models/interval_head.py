"""The interval head of a device model, and the scores of its intervals, in torch.

The same functions in numpy, which define them, are `fleet.interval` and
`fleet.decoding.uncertainty`; these are differentiable and go into exported graphs.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.interval import MAX_LOG_ODDS, MAX_RADIUS

START_RADIUS = 0.5
LOG_FLOOR = 1e-12


class IntervalHead(nn.Module):
    """Center logits and a radius for every code from a hidden state [..., D].

    With rank 0 the radius has a full matrix, otherwise two thin ones.
    """

    def __init__(self, center: nn.Linear, rank: int) -> None:
        super().__init__()
        self.center = center
        codes, dim = center.weight.shape
        if rank > 0:
            self.radius_down = nn.Linear(dim, rank, bias=False)
        self.radius_up = nn.Linear(rank or dim, codes)
        # All radii start at one half, whatever the hidden state.
        nn.init.zeros_(self.radius_up.weight)
        nn.init.constant_(self.radius_up.bias, math.log(math.expm1(START_RADIUS)))

    @property
    def rank(self) -> int:
        """Return the rank of the radius, 0 for a full matrix."""
        return self.radius_up.in_features if hasattr(self, "radius_down") else 0

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return center logits and radii, both [..., V] and fp32."""
        center: Tensor = self.center(hidden)
        return center.float(), self.radius(hidden)

    def radius(self, hidden: Tensor) -> Tensor:
        """Return the radii [..., V], between 0 and 10."""
        narrow = self.radius_down(hidden) if hasattr(self, "radius_down") else hidden
        return F.softplus(self.radius_up(narrow).float()).clamp(max=MAX_RADIUS)


@dataclass(frozen=True)
class IntervalLaw:
    """A center law and the interval around it, as log-odds and radius [..., V]."""

    log_odds: Tensor
    radius: Tensor

    @property
    def log_lower(self) -> Tensor:
        """Return the log of the lower probabilities."""
        return F.logsigmoid(self.log_odds - self.radius)

    @property
    def log_center(self) -> Tensor:
        """Return the log of the center law."""
        return F.logsigmoid(self.log_odds)

    @property
    def log_upper(self) -> Tensor:
        """Return the log of the upper probabilities."""
        return F.logsigmoid(self.log_odds + self.radius)

    @property
    def below(self) -> Tensor:
        """Return center minus lower, without cancellation."""
        return _difference(self.log_odds, self.log_odds - self.radius, self.radius)

    @property
    def above(self) -> Tensor:
        """Return upper minus center, without cancellation."""
        return _difference(self.log_odds + self.radius, self.log_odds, self.radius)

    @property
    def width(self) -> Tensor:
        """Return upper minus lower, without cancellation."""
        return self.below + self.above


def interval_law(center: Tensor, radius: Tensor) -> IntervalLaw:
    """Return the interval of center logits and radii, both [..., V]."""
    return IntervalLaw(log_odds(center), radius.clamp(max=MAX_RADIUS))


def log_odds(logits: Tensor) -> Tensor:
    """Return the log-odds [..., V] of softmax(logits), fp32, clamped to ±60."""
    logits = logits.float()
    law = logits.log_softmax(dim=-1)
    top = law.argmax(dim=-1, keepdim=True)
    # All but the largest are at most 1/2, so 1 - p has no cancellation; the largest has the sum
    # of the others computed anew.
    others = law.scatter(-1, top, float("-inf")).logsumexp(dim=-1, keepdim=True)
    odds = law - torch.log1p(-law.clamp(max=math.log(0.5)).exp())
    is_top = torch.zeros_like(law, dtype=torch.bool).scatter(-1, top, True)
    odds = torch.where(is_top, law - others, odds)
    return odds.clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)


def scores(law: IntervalLaw, codes: Tensor) -> Tensor:
    """Return all scores [..., 6] in the order of `prediction.SCORE_NAMES`; codes are [V, d]."""
    center = law.log_odds.sigmoid()
    width, log_center = law.width, law.log_center
    volume, disparity = width.sum(dim=-1), width.std(dim=-1, correction=0)
    bound = torch.minimum(law.below.sum(dim=-1), law.above.sum(dim=-1))
    entropy = -(center * log_center).sum(dim=-1)
    rest = (-law.log_odds.amax(dim=-1)).sigmoid()
    mean = center @ codes
    square = mean.square().sum(dim=-1)
    spread = (2 * (1 - square)).clamp(min=0)
    widest = spread + _spread_slack(law, mean @ codes.T, square)
    return torch.stack([volume * disparity, bound, entropy, rest, spread, widest], dim=-1)


def feature_scalars(
    law: IntervalLaw, tokens: Tensor, score: Tensor, threshold: Tensor | float
) -> Tensor:
    """Return the sixteen scalars [..., 16] of the interval feature.

    Order and meaning are those of `fleet.decoding.uncertainty.feature_scalars`. `tokens` [...]
    were drawn, `score` [...] is the policy's score, `threshold` what it is compared with.
    """
    log_size = math.log(law.log_odds.shape[-1])
    center, width = law.log_odds.sigmoid(), law.width
    first, second = center.topk(2, dim=-1).values.unbind(dim=-1)
    own = _at(law.log_odds, tokens)
    rank = (law.log_odds > own[..., None]).sum(dim=-1) + 1
    columns = [
        _at(law.log_lower, tokens),
        _at(law.log_center, tokens),
        _at(law.log_upper, tokens),
        own / 10,
        _at(law.radius, tokens),
        width.sum(dim=-1).clamp(min=LOG_FLOOR).log(),
        width.std(dim=-1, correction=0).clamp(min=LOG_FLOOR).log(),
        torch.minimum(law.below.sum(dim=-1), law.above.sum(dim=-1)),
        -(center * law.log_center).sum(dim=-1) / log_size,
        first,
        first - second,
        rank.float().log() / log_size,
        law.radius.mean(dim=-1),
        law.radius.amax(dim=-1),
        score - threshold,
        torch.ones_like(first),
    ]
    return torch.stack(columns, dim=-1)


def _spread_slack(law: IntervalLaw, along: Tensor, square: Tensor) -> Tensor:
    """Return by how much the spread [...] may grow inside the interval.

    `along` [..., V] are the codes' parts along the mean code, `square` [...] is the mean code's
    square; `fleet.decoding.uncertainty.spread_bound` has the proof.
    """
    lead = along - square[..., None]
    lost = torch.where(lead > 0, law.below, law.above) * lead.abs()
    most = torch.minimum(lost.sum(dim=-1), square)
    return 2 * most * (2 - most / square.clamp(min=LOG_FLOOR))


def _difference(high: Tensor, low: Tensor, gap: Tensor) -> Tensor:
    # s(high) - s(low) = s(high) s(-low) (1 - e^(low - high)): no term is a small difference.
    return high.sigmoid() * (-low).sigmoid() * -torch.expm1(-gap)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index[..., None])[..., 0]
