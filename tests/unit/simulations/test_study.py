"""Captions, matched methods and figures of the comparison."""

import numpy as np
import pytest

from fleet.training.pictures import Pictures
from simulations.evaluation.captions import GROUPS, chosen_captions, search_captions
from simulations.evaluation.decoder import CORRECTED, LOCAL, PREFIX, VERIFIED
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import SamplingRule
from simulations.evaluation.metrics import Coverage, Estimate
from simulations.evaluation.study import (
    Row,
    Shipped,
    corrected_share,
    discrimination,
    equal_calls,
)

SHIPPED = Shipped(SamplingRule(), "uncertainty", 0.5, prefix=2)


def pictures() -> Pictures:
    """1,200 pictures of one pixel: two thirds train, a sixth each validation and test."""
    split = np.array([0, 0, 0, 0, 1, 2] * 200, np.uint8)
    names = [f"style: picture {index}" for index in range(1200)]
    return Pictures(np.zeros((1200, 1, 1, 3), np.uint8), names, split, np.ones(1200, np.float32))


def sample(decisions: np.ndarray, scores: np.ndarray) -> Sample:
    count = len(decisions)
    return Sample(
        tokens=np.zeros(decisions.shape, np.uint16),
        decisions=decisions.astype(np.uint8),
        scores=scores.astype(np.float32),
        pictures=np.zeros((count, 2, 2, 3), np.uint8),
        features=np.zeros((count, 4), np.float32),
    )


def test_captions_are_distinct_and_mostly_known() -> None:
    data = pictures()

    chosen = chosen_captions(data, 400)

    assert len(set(chosen.captions)) == 400
    assert chosen.held_out.sum() == 100
    assert set(data.split[chosen.rows[chosen.held_out]]) == {2}
    assert set(data.split[chosen.rows[~chosen.held_out]]) == {0}


def test_settings_are_searched_on_other_captions() -> None:
    data = pictures()
    chosen = chosen_captions(data, 400)

    searched = search_captions(data, 200, chosen)

    assert not set(searched.captions) & set(chosen.captions)
    assert set(data.split[searched.rows[searched.held_out]]) == {1}


def test_every_picture_has_a_seed_of_its_own_and_every_group_its_share() -> None:
    chosen = chosen_captions(pictures(), 400)

    assert len(set(chosen.seeds)) == 400
    assert np.bincount(chosen.groups).tolist() == [400 // GROUPS] * GROUPS


def test_other_methods_ask_as_often_as_ciar_did() -> None:
    rng = np.random.default_rng(1)
    decisions = np.full((50, 12), LOCAL)
    decisions[:, :2] = PREFIX
    decisions[:, 2:5] = VERIFIED  # three of ten
    scores = rng.random((50, 12, 5))

    coin, entropy = equal_calls(SHIPPED, sample(decisions, scores), ("uncertainty", "entropy"))

    assert coin.rate == pytest.approx(0.3)
    assert (scores[:, 2:, 2] > entropy.threshold).mean() == pytest.approx(0.3, abs=0.01)
    assert (coin.prefix, entropy.prefix) == (2, 2)


def test_the_corrected_share_is_of_what_was_judged() -> None:
    decisions = np.array([[PREFIX, LOCAL, VERIFIED, CORRECTED, CORRECTED]], np.uint8)

    assert corrected_share(decisions) == pytest.approx(2 / 3)
    assert corrected_share(np.array([[PREFIX, LOCAL]], np.uint8)) == 0


def test_discrimination_counts_spreads_of_the_difference() -> None:
    def row(value: float, spread: float) -> Row:
        return Row("", "", 1, None, None, Estimate(value, spread), None, 0.0, Coverage(0, 0), None)

    assert discrimination([row(10, 3), row(40, 4)]) == pytest.approx(6.0)
