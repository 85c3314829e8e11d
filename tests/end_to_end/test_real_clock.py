"""A scenario on the real clock: real broker, hub and agents, held against every law."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from simulations.broker import Kind
from simulations.history.events import Event
from simulations.real.run import RealOrder
from simulations.real.twins import twin_of
from simulations.runs import run_real
from simulations.scenarios.files import parse

pytestmark = pytest.mark.alone

PATIENT = {"deadline_s": 240.0, "outage_patience_s": 240.0}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("broker", ["trial", "mosquitto"])
def test_a_small_fleet_keeps_every_law_through_what_signals_do(
    tmp_path: Path, broker: Kind
) -> None:
    """SIGKILL and SIGSTOP of agents and workers, a stalled broker, full disks, cut links."""
    scenario = parse(
        {
            "name": "few",
            "about": "Four real agents and two workers.",
            "devices": 4,
            "seconds": 24.0,
            "arrivals": {"law": "steady", "per_minute": 5},
            "generation": PATIENT,
            "hub": {"workers": 2},
            "faults": [
                {"kind": "kill-agents", "share": 0.25, "at_s": 2.0, "for_s": 2.0},
                {"kind": "stall-agents", "share": 0.25, "at_s": 3.0, "for_s": 3.0},
                {"kind": "limit-links", "share": 0.5, "bytes": 2500, "at_s": 5.0, "for_s": 4.0},
                {"kind": "kill-worker", "worker": 1, "at_s": 7.0, "for_s": 2.0},
                {"kind": "stall-worker", "worker": 0, "at_s": 10.0, "for_s": 3.0},
                {"kind": "fill-spools", "share": 0.5, "at_s": 12.0, "for_s": 3.0},
                {"kind": "fill-database", "at_s": 14.0, "for_s": 4.0},
                {"kind": "stall-broker", "at_s": 19.0, "for_s": 2.0},
                {"kind": "double-clients", "share": 0.25, "at_s": 21.0, "for_s": 2.0},
                {"kind": "jump-clock", "at_s": 22.0, "for_s": 2.0},
            ],
        },
        source="a test",
    )

    found = run_real(RealOrder(scenario, 1, tmp_path, crowds=1, broker=broker))

    assert found.violations == []
    ends = found.tally.events
    assert ends["made"] + ends["interrupted"] + ends["unheard"] == ends["asked"] > 0
    assert ends["made"] > 2
    assert found.tally.faults == []
    assert {event["kind"] for event in found.events if event["event"] == "fault"} == {
        fault.kind for fault in scenario.faults
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_hub_and_a_locked_database_lose_nothing(tmp_path: Path) -> None:
    scenario = parse(
        {
            "name": "few",
            "about": "Two real agents, one hub.",
            "devices": 2,
            "seconds": 18.0,
            "arrivals": {"law": "steady", "per_minute": 10},
            "generation": PATIENT,
            "faults": [
                {"kind": "stop-database", "at_s": 1.0, "for_s": 3.0},
                {"kind": "kill-worker", "worker": 0, "at_s": 5.0, "for_s": 1.0},
                # Late enough for a hub that starts slowly: it ends where it finds no broker.
                {"kind": "kill-broker", "at_s": 16.0, "for_s": 1.0},
            ],
        },
        source="a test",
    )

    order = RealOrder(scenario, 1, tmp_path, crowds=2)
    found = run_real(order)

    assert found.violations == []
    assert found.tally.made == found.tally.events["asked"] > 0
    assert_some_have_twins(order, found.events)


def assert_some_have_twins(order: RealOrder, events: Sequence[Event]) -> None:
    """So that "no violation" says something about pictures."""
    twin = twin_of(order, events)
    asked = {(e["node"], e["wish"]): e for e in events if e["event"] == "asked"}
    compared = [
        event["image"] == name
        for event in events
        if event["event"] == "made"
        and (wish := asked[event["node"], event["wish"]])
        and (name := twin(wish["caption"], wish["seed"], "")) is not None
    ]
    assert compared
    assert all(compared)
