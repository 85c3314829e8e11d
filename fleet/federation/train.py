"""Training and validation of a head's change on one node's samples, by the Inter-DRO loss."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.federation.head import HeadChange
from fleet.federation.samples import Samples
from fleet.interval import MAX_RADIUS
from fleet.models.interval_head import log_odds
from fleet.training.device import COVERAGE, KL_WEIGHT, RADIUS_WEIGHT, device_loss
from fleet.training.losses import (
    Robust,
    divergence,
    lower_bound_loss,
    radius_loss,
    target_log_odds,
    total_variation,
)

Loss = Literal["inter-dro", "distillation"]

_EVALUATE_ROWS = 1024
_ALIKE = 32
_ROBUST_WEIGHT = 0.3  # over blocks; the device's own training has less, over samples
_GRADIENT_NORM = 1.0
_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a node trains."""

    loss: Loss
    steps: int
    batch: int
    rate: float
    proximal: float  # FedProx's mu; 0: none
    seed: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The means over samples; `loss` is what decides whether an aggregate is kept.

    `loss_error` is the standard error of `loss` over what else the node might have held out: of
    means of `_ALIKE` samples in a row, since those of one picture are alike. `match` is a floor
    of the share of drafts that the cloud's draw with the same noise equals: (1 - TV) / (1 + TV)
    of the two laws (arXiv:2408.07978).
    """

    loss: float
    kl: float
    tv: float
    match: float
    covered: float  # share of the law's mass whose log-odds error lies within the radius
    loss_error: float = 0.0


def train(change: HeadChange, samples: Samples, recipe: Recipe) -> None:
    """Trains `change` in place; the same samples, start and seed give the same bits.

    One thread computes: with several, sums come in an order that depends on the machine.
    """
    rng = np.random.default_rng(recipe.seed)
    start = [value.detach().clone() for value in change.parameters()]
    optimizer = _Adam(list(change.parameters()))
    size = min(recipe.batch, len(samples))
    for step in range(recipe.steps):
        chosen = samples[rng.permutation(len(samples))[:size]]
        loss = _loss(change, chosen, recipe.loss)
        if recipe.proximal:
            apart = zip(change.parameters(), start, strict=True)
            loss = loss + recipe.proximal / 2 * sum(
                (now - then).square().sum() for now, then in apart
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(change.parameters(), _GRADIENT_NORM)
        # Linearly to zero, so that the last steps average the batches.
        optimizer.step(recipe.rate * (1 - step / recipe.steps))


class _Adam:
    """Adam (arXiv:1412.6980). torch's own imports its compiler at the first step: 80 MB."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._means = [torch.zeros_like(each) for each in parameters]
        self._squares = [torch.zeros_like(each) for each in parameters]
        self._count = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Moves the parameters against their gradients, and drops these."""
        self._count += 1
        first, second = 1 - _BETAS[0] ** self._count, 1 - _BETAS[1] ** self._count
        for each, mean, square in zip(self._parameters, self._means, self._squares, strict=True):
            gradient = each.grad
            assert gradient is not None
            mean.lerp_(gradient, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            each.addcdiv_(mean, (square / second).sqrt_().add_(_EPSILON), value=-rate / first)
            each.grad = None


@torch.no_grad()
def evaluate(change: HeadChange, samples: Samples) -> Figures:
    """The figures of `change` on samples that have a law.

    Raises:
        ValueError: There are none.
    """
    if not len(samples):
        raise ValueError("no samples to validate with")
    rows = []
    for start in range(0, len(samples), _EVALUATE_ROWS):
        part = samples[start : start + _EVALUATE_ROWS]
        center, radius = center_and_radius(change, part)
        log_center = center.log_softmax(dim=-1)
        target = whole_law(part, log_center)
        odds = log_odds(center)
        kl = divergence(target, log_center)
        tv = total_variation(target, log_center.exp())
        missing = radius_loss(target, odds, radius, COVERAGE)
        inside = (target_log_odds(target) - odds).abs() <= radius.clamp(max=MAX_RADIUS)
        covered = (target * inside).sum(dim=-1)
        loss = KL_WEIGHT * kl + 2 * tv + RADIUS_WEIGHT * missing
        rows.append(torch.stack([loss, kl, tv, (1 - tv) / (1 + tv), covered], dim=-1))
    found = torch.cat(rows).double()
    loss, kl, tv, match, inside = found.mean(dim=0).tolist()
    return Figures(loss, kl, tv, match, inside, _error(found[:, 0]))


def _error(losses: Tensor) -> float:
    if len(losses) < 2:
        return 0.0
    parts = torch.tensor_split(losses, max(len(losses) // _ALIKE, 2))
    means = torch.stack([part.mean() for part in parts])
    return float(means.std() / len(means) ** 0.5)


def center_and_radius(change: HeadChange, samples: Samples) -> tuple[Tensor, Tensor]:
    """Return center logits and radii [n, V] at samples."""
    guided = torch.from_numpy(samples.guided.astype(np.float32))
    return change(guided, torch.from_numpy(samples.hidden.astype(np.float32)))  # type: ignore[no-any-return]


def whole_law(samples: Samples, log_center: Tensor) -> Tensor:
    """Return laws [n, V]: the codes that the hub sent, and the rest as the device has it.

    What is left of the mass is spread over the other codes in proportion to the device's own law
    (no gradient), so that they ask for the mass of the tail and for no shape of it.
    """
    codes = torch.from_numpy(samples.codes.astype(np.int64))
    known = torch.from_numpy(samples.log_probs.astype(np.float32)).exp()
    known = known / known.sum(dim=-1, keepdim=True).clamp(min=1.0)  # half precision rounds up too
    rest = log_center.detach().exp()
    # Codes of no probability are padding, which may repeat code 0: they stay in the rest.
    taken = torch.zeros_like(rest).scatter_add(1, codes, known)
    rest = rest.masked_fill(taken > 0, 0.0)
    mass = (1 - known.sum(dim=-1, keepdim=True)).clamp(min=0.0)
    return taken + mass * rest / rest.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def _loss(change: HeadChange, samples: Samples, kind: Loss) -> Tensor:
    center, radius = center_and_radius(change, samples)
    target, odds = whole_law(samples, center.log_softmax(dim=-1)), log_odds(center)
    loss, _ = device_loss(target, center, radius, all_terms=False)
    loss = loss + RADIUS_WEIGHT * radius_loss(target, odds, radius, COVERAGE).mean()
    if kind == "inter-dro":
        lower = lower_bound_loss(target, odds, radius)
        loss = loss + _ROBUST_WEIGHT * worst_blocks(lower, samples.sequence)
    return loss


def worst_blocks(losses: Tensor, sequence: NDArray[np.uint64]) -> Tensor:
    """Return the worst mean of losses [n] over weights of blocks of samples in a row (group DRO).

    A sample's loss is mostly the chance of its position; that of a block, which is about a
    picture, says how hard the picture is (arXiv:1911.08731, within the ball of `Robust`).
    """
    numbers = torch.from_numpy((sequence // _ALIKE).astype(np.int64))
    _, block, sizes = numbers.unique(return_inverse=True, return_counts=True)
    means = torch.zeros(len(sizes)).index_add(0, block, losses.detach()) / sizes
    weights = Robust().weights(means)[block]
    return (weights * losses).sum() / weights.sum()
