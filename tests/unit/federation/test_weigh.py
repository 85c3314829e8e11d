"""What each node counts: the worst ones more where they differ, and equally where they do not."""

import numpy as np
import pytest

from fleet.federation.head import HeadChange, main_directions, no_change
from fleet.federation.samples import Samples
from fleet.federation.train import evaluate
from fleet.federation.weigh import node_weights, own_share
from tests.unit.federation.toy import toy_head, toy_samples

BALL, CAP = 0.3, 3.0


def divergence(weights: np.ndarray) -> float:
    shares = weights / weights.sum()
    return float((shares * np.log(shares * len(shares))).sum())


def test_the_worst_nodes_count_more_where_nodes_differ_by_themselves() -> None:
    losses = [(loss, 0.01) for loss in (2.0, 2.1, 2.2, 3.0)]

    weights = node_weights([100] * 4, losses, BALL, CAP)

    assert list(weights) == sorted(weights)
    assert weights.mean() == pytest.approx(1)
    assert divergence(weights) == pytest.approx(BALL, abs=0.01)


def test_nodes_that_differ_by_chance_count_alike() -> None:
    rng = np.random.default_rng(0)
    losses = [(float(loss), 0.5) for loss in rng.normal(3.0, 0.5, size=40)]

    weights = node_weights([100] * 40, losses, BALL, CAP)

    assert divergence(weights) < 0.001  # 0.3 if chance were taken for a difference


def test_the_share_of_a_spread_that_is_the_nodes_own() -> None:
    rng = np.random.default_rng(1)
    own, chance = rng.normal(size=4000), rng.normal(size=4000)

    share = own_share(own + chance, np.ones(4000))

    assert share == pytest.approx(0.5, abs=0.05)
    assert own_share(np.ones(3), np.ones(3)) == 0
    assert own_share(np.ones(1), np.zeros(1)) == 0


@pytest.mark.parametrize(("loss", "error"), [(1e12, 0.0), (2.0, 1e300), (2.0, 1e12)])
def test_a_false_report_moves_weights_within_the_cap(loss: float, error: float) -> None:
    losses = [*((2.0 + number / 10, 0.01) for number in range(9)), (loss, error)]

    weights = node_weights([100] * 10, losses, BALL, CAP)

    assert weights.max() <= CAP * 1.001
    assert weights.min() > 0.1


def test_the_error_of_a_loss_is_that_of_what_else_might_have_been_held_out() -> None:
    head = toy_head()
    directions = main_directions(head, 4)
    change = HeadChange(head, directions, no_change(head, directions))

    def figures(seed: int, count: int) -> tuple[float, float]:
        found = evaluate(change, drawn(seed, count))
        return found.loss, found.loss_error

    def drawn(seed: int, count: int) -> Samples:
        rows = np.random.default_rng(seed).permutation(20_000)[:count]
        return everything[rows]

    everything = toy_samples(5, 20_000)
    several = np.array([figures(seed, 320) for seed in range(60)])

    assert several[:, 1].mean() == pytest.approx(several[:, 0].std(), rel=0.25)
    assert figures(0, 1)[1] == 0
