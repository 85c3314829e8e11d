"""Known pictures on known links: the clock's arithmetic, step by step."""

import numpy as np
import pytest

from edge_agent.pace import Pace
from simulations.evaluation.clock.drafting import window
from simulations.evaluation.clock.link import FIVE_G, Link, request_bytes, response_bytes
from simulations.evaluation.clock.replay import Story, alone, rounds, stream, wait
from simulations.evaluation.clock.steps import LENGTHS, StepCosts

DEVICE, CLOUD, RTT = 0.01, 0.1, 1.0
COSTS = StepCosts("made up", DEVICE, 0.02, (CLOUD,) * len(LENGTHS), 0.3)
FREE = Link("no width limit", RTT, np.inf, np.inf)


def story(pattern: str, prefix: int = 0) -> Story:
    """`.` local, `v` verified, `c` corrected, `a` amended; the prefix is written `p`."""
    marks = np.array(list(pattern))
    return Story(
        prefix,
        np.isin(marks, ["v", "c"]),
        np.isin(marks, ["c", "a"]),
        np.zeros(len(marks), np.uint8),
    )


def test_device_and_stream_are_sums() -> None:
    assert alone(story("...."), COSTS).seconds == pytest.approx(4 * DEVICE)
    used = stream(10, COSTS, FREE)
    assert used.seconds == pytest.approx(RTT + 10 * CLOUD)
    assert (used.forwards, used.round_trips) == (10, 1)
    assert used.cloud_seconds == pytest.approx(10 * CLOUD)


def test_stop_and_wait_pays_a_round_trip_for_every_question() -> None:
    used = wait(story("pp.v.cv", prefix=2), COSTS, FREE)

    assert used.forwards == 2 + 3
    assert used.round_trips == 1 + 3
    assert used.cloud_tokens == 2 + 2 + 2 + 1  # the prefix, then each token once
    assert used.cloud_seconds == pytest.approx(5 * CLOUD)
    assert used.seconds == pytest.approx((RTT + 2 * CLOUD) + 5 * DEVICE + 3 * (RTT + CLOUD))


def test_drafting_on_hides_what_is_verified_in_time() -> None:
    # One question at the start, verified while the window's drafts are made.
    used = window(story("v" + "." * 15), COSTS, FREE, Pace())
    assert used.seconds == pytest.approx(DEVICE + RTT + CLOUD)
    assert (used.device_steps, used.forwards, used.round_trips) == (16, 1, 1)


def test_a_correction_costs_the_drafts_behind_it() -> None:
    used = window(story("c" + "." * 15), COSTS, FREE, Pace())

    assert used.seconds == pytest.approx(DEVICE + RTT + CLOUD + 15 * DEVICE)
    assert used.device_steps == 16 + 15


def test_requests_behind_a_correction_are_not_run() -> None:
    used = window(story("cv" + "." * 5), COSTS, FREE, Pace())

    # First both fly; the correction drops the second, which is asked about again.
    assert used.round_trips == 3
    assert used.forwards == 2
    assert used.cloud_seconds == pytest.approx(2 * CLOUD)


def test_the_window_stops_the_device() -> None:
    used = window(story("v" + "." * 79), COSTS, FREE, Pace())

    assert used.seconds == pytest.approx(DEVICE + RTT + CLOUD + (80 - 64) * DEVICE)


def test_a_device_whose_drafts_never_stand_stops_and_waits() -> None:
    told, pace = story("c" * 20), Pace()
    used = [window(told, COSTS, FREE, pace) for _ in range(3)]

    stopping = wait(told, COSTS, FREE)
    assert used[0].device_steps > used[2].device_steps == stopping.device_steps == 20
    assert used[2].seconds == pytest.approx(stopping.seconds)


def test_a_device_whose_drafts_stand_asks_about_many_at_once() -> None:
    told, pace = story("v" * 60), Pace()
    used = [window(told, COSTS, FREE, pace) for _ in range(3)]

    assert used[2].round_trips < 12
    assert used[2].seconds < 0.2 * wait(told, COSTS, FREE).seconds


def test_an_amended_token_is_found_by_the_next_request() -> None:
    used = window(story(".a.v."), COSTS, FREE, Pace())

    # The request for position 3 finds the change at 1; after that 3 is asked about again.
    assert used.forwards == 2
    assert used.device_steps == 5 + 3


def test_rounds_pay_the_link_only_where_they_cross_it() -> None:
    chain = Story(0, np.zeros(6, bool), np.zeros(6, bool), np.array([2, 0, 0, 2, 0, 1], np.uint8))

    over, inside = rounds(chain, COSTS, FREE, 0), rounds(chain, COSTS, None, 0)

    assert inside.forwards == 3
    assert inside.cloud_tokens == 3 + 3 + 2
    assert inside.seconds == pytest.approx(5 * DEVICE + 3 * CLOUD)
    assert over.seconds - inside.seconds == pytest.approx(3 * RTT)
    tree = rounds(chain, COSTS, None, levels=4)
    assert tree.seconds == pytest.approx(3 * (DEVICE + 4 * 0.02 + 0.3))


def test_bytes_are_those_of_the_real_messages() -> None:
    assert request_bytes(9, 8) - request_bytes(9, 7) == 48
    assert 100 < response_bytes(1) < 250
    narrow = Link("narrow", 0.0, 1000.0, 1000.0)
    used = wait(story("v"), COSTS, narrow)
    size = request_bytes(1, 0) + response_bytes(1)
    assert used.bytes_up + used.bytes_down == size
    assert used.seconds == pytest.approx(DEVICE + CLOUD + size / 1000)


def test_profiles_are_mean_links() -> None:
    assert FIVE_G.up_s(6250) == pytest.approx(0.01 + 0.001)
