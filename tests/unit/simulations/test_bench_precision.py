"""Products in bf16 cost little, and something."""

from fleet.models.bundle import reference_path
from simulations.bench_precision import SPANS, precision


def test_bf16_draws_nearly_what_the_release_does() -> None:
    [cost], speeds = precision(reference_path(), pictures=2, rounds=1)

    assert 0 < cost.tv < 0.02
    assert cost.tv < cost.tv_p99 < 0.3
    assert 0.95 < cost.same <= 1
    assert cost.whole in {0.0, 0.5, 1.0}
    assert len(speeds) == len(SPANS)
    assert all(0 < speed.least <= speed.ratio <= speed.most for speed in speeds)
