"""The device's losses keep their promises about weights and gradients."""

import math

import pytest
import torch

from fleet.models.interval_head import log_odds
from fleet.training.losses import (
    Robust,
    RobustForm,
    capped,
    faithful_loss,
    lower_bound_loss,
    penalised_value,
    penalised_weights,
    radius_loss,
    robust_loss,
    robust_weights,
)


def test_the_weights_lie_on_the_ball() -> None:
    losses = torch.randn(500, generator=torch.Generator().manual_seed(0)) * 2

    weights = robust_weights(losses, ball=0.3, cap=1e9).double()

    distance = (weights * weights.log()).sum() + math.log(500)
    assert abs(distance - 0.3) < 1e-4


@pytest.mark.parametrize("form", ["ball", "penalised", "cvar"])
@pytest.mark.parametrize("cap", [1.0, 1.5, 10.0])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 50.0])
def test_no_weight_exceeds_the_cap(form: RobustForm, cap: float, spread: float) -> None:
    losses = torch.randn(100, generator=torch.Generator().manual_seed(1)).double() * spread
    losses[0] += 50.0

    weights = Robust(form, ball=2.0, share=0.05, cap=cap).weights(losses)

    assert abs(float(weights.sum()) - 1) < 1e-6
    assert (weights >= 0).all()
    assert float(weights.max()) <= cap / 100 * (1 + 1e-6)
    assert (weights[losses.argsort()].diff() >= -1e-9).all()


def test_a_cap_that_binds_nobody_changes_nothing_and_one_that_does_only_moves_the_excess() -> None:
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)

    torch.testing.assert_close(capped(weights, cap=2.0), weights)
    cut = capped(weights, cap=1.6)

    assert cut[0] == pytest.approx(0.4)
    torch.testing.assert_close(cut[1:] / cut[1], weights[1:] / weights[1])
    torch.testing.assert_close(capped(weights, cap=1.0), torch.full_like(weights, 0.25))


def test_the_penalised_worst_case_is_its_closed_form_and_its_gradient_the_weights() -> None:
    losses = torch.randn(64, generator=torch.Generator().manual_seed(2)).double() * 3
    losses.requires_grad_()

    for alpha in (0.5, 1.0, 2.0):
        value = penalised_value(losses, alpha)
        weights = penalised_weights(losses, alpha)
        (gradient,) = torch.autograd.grad(value, losses)

        price = ((weights * weights.log()).sum() + math.log(64)) / alpha
        torch.testing.assert_close((weights * losses).sum() - price, value)
        torch.testing.assert_close(gradient, weights)


def test_live_weights_would_point_the_wrong_way() -> None:
    losses = torch.randn(64, generator=torch.Generator().manual_seed(3)).double()
    losses.requires_grad_()

    (wrong,) = torch.autograd.grad(((3 * losses).softmax(dim=0) * losses).sum(), losses)
    (right,) = torch.autograd.grad(Robust("penalised", alpha=3, cap=99).loss(losses), losses)

    assert (wrong < 0).sum() > 20
    assert (right >= 0).all()


def test_the_ball_s_worst_case_is_its_dual() -> None:
    losses = torch.randn(200, generator=torch.Generator().manual_seed(4)).double() * 2

    primal = float(Robust("ball", ball=0.3, cap=1e9).loss(losses))

    dual = min(
        eta * float((losses / eta).logsumexp(dim=0) - math.log(200)) + eta * 0.3
        for eta in torch.logspace(-1, 2, 2000).double().tolist()
    )
    assert primal == pytest.approx(dual, rel=1e-5)


def test_the_weights_of_a_ball_are_the_worst_in_it() -> None:
    generator = torch.Generator().manual_seed(5)
    losses = torch.randn(30, generator=generator).double()
    worst = float(Robust("ball", ball=0.3, cap=1e9).loss(losses))

    for _ in range(300):
        other = (torch.randn(30, generator=generator).double() * 2).softmax(dim=0)
        if float((other * other.log()).sum()) + math.log(30) <= 0.3:
            assert float((other * losses).sum()) <= worst + 1e-9


@pytest.mark.parametrize("share", [0.5, 0.33, 0.01, 1.0])
def test_cvar_is_the_mean_of_the_worst_share(share: float) -> None:
    losses = torch.arange(10.0).double()

    found = float(Robust("cvar", share=share, cap=1e9).loss(losses))

    eta = min(
        level + float((losses - level).clamp(min=0).mean()) / share
        for level in torch.linspace(-1, 9, 10_001).double().tolist()
    )
    assert found == pytest.approx(eta, abs=1e-3)


def test_the_faithful_arm_s_terms_only_ever_shrink_a_radius() -> None:
    generator = torch.Generator().manual_seed(6)
    target = torch.randn(64, 50, generator=generator).softmax(dim=-1)
    odds = log_odds(torch.randn(64, 50, generator=generator))
    radius = torch.full((64, 50), 0.5, requires_grad=True)

    terms = faithful_loss(target, odds, radius, Robust("penalised"))
    (robust,) = torch.autograd.grad(terms["robust"], radius, retain_graph=True)
    (total,) = torch.autograd.grad(terms["robust"] + terms["upper"] + terms["lower"], radius)

    assert not terms["center"].requires_grad
    assert not terms["aligned"].requires_grad
    assert (robust >= 0).all()
    assert float(total.sum()) > 0
    assert float((total > 0).float().mean()) > 0.9


def test_the_faithful_arm_is_the_sum_that_was_published() -> None:
    generator = torch.Generator().manual_seed(7)
    target = torch.randn(5, 9, generator=generator).softmax(dim=-1).double()
    odds, radius = log_odds(torch.randn(5, 9, generator=generator)), torch.full((5, 9), 0.4)

    terms = faithful_loss(target, odds.double(), radius.double(), Robust("penalised"))

    p, low, mid, up = target, *(torch.sigmoid(odds.double() + s * 0.4) for s in (-1, 0, 1))
    for name, law in (("lower", low), ("center", mid), ("upper", up)):
        anchor = (law - p).abs().sum(-1) - 0.1 * (p * law.log()).sum(-1)
        torch.testing.assert_close(terms[name], anchor.mean())
    losses = -(p * low.log()).sum(-1)
    torch.testing.assert_close(terms["robust"], (losses.softmax(0) * losses).sum())
    torch.testing.assert_close(terms["aligned"], (p * (p.log() - mid.log())).sum(-1).mean())


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
