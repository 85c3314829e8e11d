"""The torch interval is the numpy interval, and the adapter is neutral until it is trained."""

import numpy as np
import pytest
import torch
from torch import nn

from fleet.decoding import uncertainty
from fleet.interval import interval_softmax
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.interval_head import (
    IntervalHead,
    feature_scalars,
    interval_law,
    log_odds,
    scores,
)


@pytest.mark.parametrize("rank", [0, 4])
def test_all_radii_start_at_one_half(rank: int) -> None:
    head = IntervalHead(nn.Linear(8, 20, bias=False), rank)

    _, radius = head(torch.randn(3, 8))

    torch.testing.assert_close(radius, torch.full((3, 20), 0.5))
    assert head.rank == rank


@pytest.mark.parametrize("scale", [0.3, 3.0, 20.0])
def test_scores_and_scalars_agree_with_numpy(scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    center = torch.randn(5, 40, generator=generator) * scale
    radius = torch.rand(5, 40, generator=generator) * 2
    codes = nn.functional.normalize(torch.randn(40, 8, generator=generator), dim=-1)
    tokens = torch.arange(5)

    law = interval_law(center, radius)
    ours = scores(law, codes)
    scalars = feature_scalars(law, tokens, ours[:, 1], 0.25)

    interval = interval_softmax(center.double().numpy(), radius.double().numpy())
    theirs = uncertainty.scores(interval, codes.double().numpy())
    numbers = uncertainty.feature_scalars(interval, tokens.numpy(), theirs[:, 1], 0.25)
    np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-5, rtol=2e-4)
    np.testing.assert_allclose(scalars.numpy(), numbers, atol=2e-4, rtol=2e-4)


def test_log_odds_of_a_peaked_law_are_finite() -> None:
    odds = log_odds(torch.tensor([[200.0, 0.0, 0.0]]))

    assert odds.tolist() == [[60.0, -60.0, -60.0]]


def test_a_fresh_adapter_changes_nothing() -> None:
    added = IntervalFeature(16)(torch.randn(2, 3, 48))

    assert torch.equal(added, torch.zeros(2, 3, 16))


def test_zero_features_give_exactly_zero_whatever_the_weights() -> None:
    feature = IntervalFeature(16)
    nn.init.normal_(feature.w_out.weight)

    assert torch.equal(feature(feature.quantised(torch.zeros(4, 48))), torch.zeros(4, 16))


def test_quantised_features_are_whole_steps_within_int8() -> None:
    feature = IntervalFeature(16)
    feature.set_scale(torch.randn(100, 48))

    steps = feature.quantised(torch.randn(10, 48) * 3) / feature.scale

    torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
    assert steps.abs().max() <= 127.001


def test_the_projection_keeps_the_scalars_first() -> None:
    scalars = torch.randn(2, 16)

    features = FeatureProjection(8)(scalars, torch.randn(2, 8))

    assert features.shape == (2, 48)
    assert torch.equal(features[:, :16], scalars)
