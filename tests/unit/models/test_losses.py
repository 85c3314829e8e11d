"""The device's losses keep their promises about weights and gradients."""

import math

import torch

from fleet.training.losses import (
    lower_bound_loss,
    radius_loss,
    robust_loss,
    robust_weights,
)


def test_the_weights_lie_on_the_ball() -> None:
    losses = torch.randn(500, generator=torch.Generator().manual_seed(0)) * 2

    weights = robust_weights(losses, ball=0.3, cap=1e9).double()

    distance = (weights * weights.log()).sum() + math.log(500)
    assert abs(distance - 0.3) < 1e-4


def test_no_weight_exceeds_the_cap_by_more_than_the_renormalisation() -> None:
    losses = torch.zeros(100)
    losses[0] = 50.0

    weights = robust_weights(losses, ball=2.0, cap=10.0)

    assert abs(float(weights.sum()) - 1) < 1e-5
    assert weights[0] < 0.2


def test_the_gradient_is_that_of_fixed_weights() -> None:
    losses = torch.randn(64, requires_grad=True)

    robust_loss(losses, ball=0.3, cap=1e9).backward()

    assert losses.grad is not None
    torch.testing.assert_close(losses.grad, robust_weights(losses, ball=0.3, cap=1e9))


def test_the_lower_bound_does_not_train_the_radius() -> None:
    target = torch.randn(4, 9).softmax(dim=-1)
    odds = torch.randn(4, 9, requires_grad=True)
    radius = torch.rand(4, 9, requires_grad=True)

    lower_bound_loss(target, odds, radius).sum().backward()

    assert radius.grad is None
    assert odds.grad is not None


def test_the_best_radius_covers_the_asked_share_of_errors() -> None:
    generator = torch.Generator().manual_seed(0)
    target = (torch.randn(4000, 6, generator=generator)).softmax(dim=-1)
    odds = torch.zeros(4000, 6)
    radius = torch.tensor(0.5, requires_grad=True)
    optimizer = torch.optim.Adam([radius], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        radius_loss(target, odds, radius.expand(4000, 6), coverage=0.9).mean().backward()
        optimizer.step()

    weight = (target + 0.5) / 2
    covered = (target.logit().abs() <= radius).float()
    assert abs(float((weight * covered).sum() / weight.sum()) - 0.9) < 0.02
