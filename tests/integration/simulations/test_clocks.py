"""Both clocks run the same scenario, and their figures lie within the stated bounds."""

import time
from pathlib import Path

import pytest

from simulations.bench_clocks import (
    PROGRAMS,
    STAND_INS,
    Bounds,
    bench,
    bench_programs,
    compared,
    delays,
)
from simulations.history.tally import Tally
from simulations.profile import load_profile

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_stand_ins_agree_on_both_clocks() -> None:
    found = bench(load_profile(), devices=3, seconds=20.0)

    assert [each for each in found if each.agrees != "yes"] == []


@pytest.mark.slow
def test_programs_and_a_world_on_their_profile_agree() -> None:
    found = bench_programs(devices=2, seconds=20.0)

    assert [each for each in found if each.agrees != "yes"] == []


def tally(took_s: float, trips: int) -> Tally:
    told = Tally(took_s=[took_s] * 4)
    told.events["made"] = 4
    told.summed.update(round_trips=trips, forwards=20, tokens=100)
    return told


def test_bounds_have_two_sides() -> None:
    def disagreeing(real: Tally) -> list[str]:
        found = compared(tally(2.0, 40), real, STAND_INS)
        return [each.subject for each in found if each.agrees == "no"]

    assert disagreeing(tally(2.0, 40)) == []
    assert disagreeing(tally(1.7, 40)) == ["seconds of a picture, p50"]
    assert disagreeing(tally(3.5, 40)) == ["seconds of a picture, p50"]
    assert disagreeing(tally(2.0, 20)) == ["round trips of a picture"]
    assert disagreeing(tally(2.0, 80)) == ["round trips of a picture"]


def test_real_seconds_are_held_against_what_the_machine_made_of_a_second() -> None:
    found = compared(tally(2.0, 40), tally(6.0, 40), PROGRAMS, delay=3.0)

    assert {each.subject: each.ratio for each in found} == pytest.approx(
        dict.fromkeys(PROGRAMS, 1.0)
    )


def test_a_machine_never_makes_work_shorter() -> None:
    with delays() as delay:
        time.sleep(0.8)

    assert delay() >= 1


@pytest.mark.parametrize("bounds", [STAND_INS, PROGRAMS])
def test_the_bounds_are_those_that_the_page_states(bounds: Bounds) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "simulation.md").read_text()

    for name, (low, high) in bounds.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
        assert f"{low:g} to {high:g}" in row
