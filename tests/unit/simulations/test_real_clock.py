"""The real clock: what it cannot do is told before anything starts; events of crowds are joined."""

import json
from pathlib import Path

import pytest

from fleet.errors import InvalidInputError
from simulations.history.tally import Tally
from simulations.real.ear import Ear
from simulations.real.links import on_links
from simulations.real.parts import parts_of
from simulations.real.run import RealOrder, run_real
from simulations.scenarios.faults import VIRTUAL_ONLY
from simulations.scenarios.files import load, parse
from simulations.scenarios.population import struck
from simulations.scenarios.scenario import Scenario


def tiny(**values: object) -> Scenario:
    base = {"name": "tiny", "about": "A test.", "devices": 2, "seconds": 5.0}
    return parse({**base, **values}, source="a test")


def test_a_fault_that_needs_the_virtual_clock_is_refused(tmp_path: Path) -> None:
    faulty = tiny(faults=[{"kind": "break-worker", "at_s": 1.0}])

    with pytest.raises(InvalidInputError, match="'break-worker' needs the virtual clock"):
        run_real(RealOrder(faulty, 1, tmp_path / "out", crowds=1))

    assert not (tmp_path / "out").exists()


def test_more_processes_than_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="3 processes for 2 devices"):
        run_real(RealOrder(tiny(), 1, tmp_path / "out", crowds=3))


def test_faults_that_split_the_fleet_into_too_many_processes_are_refused(tmp_path: Path) -> None:
    faults = [{"kind": "kill-agents", "at_s": 1.0, "share": 0.5} for _ in range(7)]

    with pytest.raises(InvalidInputError, match=r"split the fleet into \d+ processes"):
        run_real(RealOrder(tiny(devices=300, faults=faults), 1, tmp_path / "out", crowds=1))


def test_devices_that_a_signal_falls_on_have_a_process_of_their_own() -> None:
    faults = [
        {"kind": "kill-agents", "at_s": 1.0, "share": 0.25},
        {"kind": "cut-links", "at_s": 1.0, "share": 0.5},
        {"kind": "stall-agents", "at_s": 2.0, "share": 0.25},
    ]
    scenario = tiny(devices=40, faults=faults)

    parts = parts_of(scenario, 3, 2)

    assert sorted(place for part in parts for place in part.places) == list(range(40))
    for index in range(3):
        here = {place for part in parts if index in part.faults for place in part.places}
        assert here == (set() if index == 1 else struck(scenario, 3, index))
    assert [not part.faults for part in parts[:3]] == [True, True, False]


def test_devices_whose_links_a_fault_falls_on_take_a_relay() -> None:
    faults = [
        {"kind": "fill-spools", "at_s": 1.0, "share": 0.25},
        {"kind": "swallow-links", "at_s": 1.0, "share": 0.25},
        {"kind": "limit-links", "at_s": 2.0, "share": 0.25, "bytes": 100},
    ]
    scenario = tiny(devices=40, faults=faults)

    assert on_links(scenario, 3) == struck(scenario, 3, 1) | struck(scenario, 3, 2)


def test_a_killed_process_leaves_nothing_open(tmp_path: Path) -> None:
    file, tally = tmp_path / "a", Tally()
    fault = {"event": "fault", "kind": "cut-links", "nodes": ["n1"]}
    said: list[dict[str, object]] = [
        {"at": 1.0, "event": "asked", "node": "n1", "wish": 0},
        {"at": 1.1, "event": "asked", "node": "n2", "wish": 0},
        {"at": 1.2, **fault, "state": "begins"},
        {"at": 1.3, "event": "refused", "node": "n2", "wish": 0},
        {"at": 1.4, "event": "asked", "node": "n1", "wish": 1},
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in said) + '{"at": 1.5, "ev')
    ear = Ear([file], tally)

    ear.died(2.0, file, ["n1", "n2"])

    assert tally.under_way == 0
    assert tally.faults == []
    assert ear.next_wish == {"n1": 2, "n2": 1}
    assert [(each["event"], each.get("node"), each.get("wish")) for each in ear.heard[5:]] == [
        ("fault", None, None),
        ("interrupted", "n1", 0),
        ("interrupted", "n1", 1),
        ("node", "n1", None),
        ("node", "n2", None),
    ]


def test_the_smoke_and_the_city_run_on_both_clocks() -> None:
    for name in ("smoke", "city-300"):
        assert not {fault.kind for fault in load(name).faults} & set(VIRTUAL_ONLY)


def test_events_of_all_crowds_are_heard_once_and_whole(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.touch()
    ear = Ear(files, Tally())

    files[0].write_bytes(b'{"at": 1.0, "event": "end"}\n{"at": 3.0, "ev')
    files[1].write_bytes(b'{"at": 2.0, "event": "end"}\n')
    ear.listen()
    with files[0].open("ab") as stream:
        stream.write(b'ent": "end"}\n')
    ear.listen()
    ear.listen()

    assert [event["at"] for event in ear.heard] == [1.0, 2.0, 3.0]
    assert ear.tally.events["end"] == 3
