"""The pace of drafting: what is measured, and what follows from it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.pace import LEAST_CHANCE, SHORTEST_REPEAT_S, Mean, Pace
from edge_agent.power import is_on_battery


def measured(
    acceptance: float = 0.7,
    *,
    trip_s: float = 0.05,
    service_s: float = 0.01,
    draft_s: float = 0.0005,
    unsure: float = 0.3,
) -> Pace:
    pace = Pace()
    for _ in range(50):
        pace.judged(100, round(100 * acceptance))
        pace.answered(trip_s, 0.0, service_s)
        pace.drafted(100, round(100 * unsure), 100 * draft_s)
    return pace


@given(st.lists(st.floats(0, 1), min_size=1))
def test_a_mean_lies_among_its_values(values: list[float]) -> None:
    mean = Mean(8)
    for value in values:
        mean.add(value)

    assert min(values) - 1e-9 <= mean.value <= max(values) + 1e-9


def test_a_mean_forgets() -> None:
    mean = Mean(8)
    mean.add(0.0, 100)
    mean.add(100.0, 100)

    assert mean.value > 0.99


@given(st.floats(0, 0.99), st.sampled_from(sorted(LEAST_CHANCE.values())), st.integers(1, 64))
def test_the_last_draft_within_reach_is_likely_enough_and_the_next_is_not(
    acceptance: float, least: float, most: int
) -> None:
    pace = Pace()
    pace.acceptance = Mean(64, acceptance, 1.0)

    reach = pace.reach(least, most)

    assert 0 <= reach <= most
    assert reach == 0 or pace.chance(reach) >= least * (1 - 1e-9)
    assert reach == most or pace.chance(reach + 1) < least * (1 + 1e-9)


def test_drafts_that_never_stand_are_not_made_and_those_that_always_do_have_no_bound() -> None:
    assert 0 == measured(0.0).reach(0.02, 64)
    assert 64 == measured(1.0).reach(0.5, 64)


def test_less_effort_reaches_less_far() -> None:
    pace = measured(0.6)

    reaches = [pace.reach(LEAST_CHANCE[effort], 64) for effort in ("saving", "balanced", "full")]

    assert [1, 4, 7] == reaches


def test_a_request_is_held_for_a_quick_draft_before_a_slow_hub_and_not_the_other_way() -> None:
    assert measured(0.5, service_s=0.1, draft_s=0.001).is_worth_holding(1)
    assert not measured(0.5, service_s=0.001, draft_s=0.01).is_worth_holding(1)
    assert not measured(0.0, service_s=0.1, draft_s=0.001).is_worth_holding(1)
    assert not Pace().is_worth_holding(1)


def test_a_repeat_waits_for_the_round_trip_and_its_spread() -> None:
    pace = measured(trip_s=0.6)
    steady = pace.repeat_after_s(5.0)
    pace.answered(1.5, 0.0, 0.01)

    assert 0.6 <= steady < 0.7
    assert steady < pace.repeat_after_s(5.0) <= 5.0
    assert 0.3 == pace.repeat_after_s(0.3)


def test_an_unknown_or_short_round_trip_repeats_no_sooner_than_others_would() -> None:
    assert 1.0 == Pace().repeat_after_s(1.0)
    assert SHORTEST_REPEAT_S == measured(trip_s=0.001).repeat_after_s(1.0)


def test_time_in_the_hub_s_queue_is_not_the_link_s() -> None:
    pace = Pace()
    pace.answered(2.05, 2.0, 0.01)

    assert 0.05 == pytest.approx(pace.round_trip_s.value)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({"BAT0/type": "Battery", "BAT0/status": "Discharging"}, True),
        ({"BAT0/type": "Battery", "BAT0/status": "Charging"}, False),
        ({"AC/type": "Mains", "AC/online": "1"}, False),
        ({"pen/type": "Battery", "pen/scope": "Device", "pen/status": "Discharging"}, False),
    ],
)
def test_a_battery_counts_while_it_empties(
    tmp_path: Path, files: dict[str, str], expected: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")

    assert expected == is_on_battery(tmp_path)
