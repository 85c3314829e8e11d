"""Capacity: the queue behaves as queues do, and more speed serves more devices."""

import pytest
from click.testing import CliRunner

from simulations.capacity import Costs, Demand, load, most_devices, scales
from simulations.cli import main

DEMAND = Demand(requests=30, tokens=300)
COSTS = Costs(forward_s=0.01, token_s=0.0005, request_s=0.001)  # 6 ms a request beside the fixed
MOST = 64


def test_an_idle_worker_takes_one_forward_for_a_request() -> None:
    found = load(1, 0.01, DEMAND, COSTS, MOST)

    assert found.p50_s == pytest.approx(0.01 + 0.006, rel=0.01)
    assert found.batch == pytest.approx(1, rel=0.01)


def test_batches_and_waits_grow_with_the_load() -> None:
    loads = [load(devices, 1.0, DEMAND, COSTS, MOST) for devices in (10, 100, 200, 280)]

    assert [each.batch for each in loads] == sorted(each.batch for each in loads)
    assert [each.p95_s for each in loads] == sorted(each.p95_s for each in loads)
    assert loads[-1].busy < 1


def test_a_forward_is_as_long_as_the_law_of_batches_says() -> None:
    """Served in one forward is what came in the one before: length = fixed / (1 - load).

    Where the worker never idles, that is: else a forward has at least one request.
    """
    devices, rate = 300, 300 / 60 * 30
    found = load(devices, 1.0, DEMAND, COSTS, most=10_000)
    forward_s = 0.01 / (1 - rate * 0.006)

    assert found.batch == pytest.approx(rate * forward_s, rel=0.15)


def test_more_than_a_worker_can_do_is_refused() -> None:
    with pytest.raises(ValueError, match="of a worker"):
        load(400, 1.0, DEMAND, COSTS, MOST)


def test_the_most_devices_keep_the_deadline_and_more_do_not() -> None:
    best = most_devices(0.1, 1.0, DEMAND, COSTS, MOST)

    assert best is not None
    assert best.p95_s <= 0.1 < load(best.devices + 15, 1.0, DEMAND, COSTS, MOST).p95_s


def test_a_worker_of_twice_the_speed_serves_about_twice_as_many() -> None:
    fast = Costs(COSTS.forward_s / 2, COSTS.token_s / 2, COSTS.request_s / 2)
    one, two = (most_devices(0.1, 1.0, DEMAND, each, MOST) for each in (COSTS, fast))

    assert one is not None
    assert two is not None
    assert two.devices > 1.8 * one.devices


def test_no_worker_keeps_a_deadline_shorter_than_a_forward() -> None:
    assert most_devices(0.005, 1.0, DEMAND, COSTS, MOST) is None


def test_fleets_take_whole_workers() -> None:
    best = load(100, 1.0, DEMAND, COSTS, MOST)

    found = list(scales([100, 101, 1_000_000], 1.0, best, DEMAND, picture_bytes=10_000))

    assert [each.workers for each in found] == [1, 2, 10_000]
    assert found[0].megabits_per_s == pytest.approx(100 / 60 * 0.08)


@pytest.mark.parametrize("option", ["--per-minute", "--p95", "--speed"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_figure_that_is_no_number_above_nothing_is_refused(option: str, value: str) -> None:
    told = CliRunner().invoke(main, ["capacity", option, value])

    assert told.exit_code == 2
    assert f"{option} is {value}: give a number above 0" in told.output
