"""The bench of worlds counts what a world did, on both clocks."""

import time

import pytest

from fleet.errors import InvalidInputError
from simulations import bench_world
from simulations.bench_world import bench
from simulations.profile import load_profile


def test_a_small_world_is_faster_than_life_and_breaks_no_law() -> None:
    begun = time.process_time()

    [speed] = bench(load_profile(), fleets=[3], seconds=60)

    assert speed.devices == 3
    assert speed.seconds >= 60 * 0.5
    assert speed.pictures > 0
    assert speed.broken_laws == 0
    assert speed.seconds_a_cpu_second > 1
    assert 0 < speed.whole_cpu_s < time.process_time() - begun
    # At least a sixth of the virtual seconds are in the rate, and took less than all.
    assert 10 / speed.seconds_a_cpu_second < speed.whole_cpu_s


def test_a_world_that_is_over_at_once_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_world, "PER_MINUTE", 1e-6)

    with pytest.raises(InvalidInputError, match="take more"):
        bench(load_profile(), fleets=[1], seconds=60)
