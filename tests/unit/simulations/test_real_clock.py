"""The real clock: what it cannot do is told before anything starts; events of crowds are joined."""

from pathlib import Path

import pytest

from fleet.errors import InvalidInputError
from simulations.history.tally import Tally
from simulations.real.run import ON_REAL_CLOCK, Ear, RealOrder, run_real
from simulations.scenarios.files import load, parse
from simulations.scenarios.scenario import Scenario


def tiny(**values: object) -> Scenario:
    base = {"name": "tiny", "about": "A test.", "devices": 2, "seconds": 5.0}
    return parse({**base, **values}, source="a test")


def test_a_fault_that_needs_the_virtual_clock_is_refused(tmp_path: Path) -> None:
    faulty = tiny(faults=[{"kind": "kill-agents", "at_s": 1.0}])

    with pytest.raises(InvalidInputError, match="'kill-agents' needs the virtual clock"):
        run_real(RealOrder(faulty, 1, tmp_path / "out", crowds=1))

    assert not (tmp_path / "out").exists()


def test_more_processes_than_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="3 processes for 2 devices"):
        run_real(RealOrder(tiny(), 1, tmp_path / "out", crowds=3))


def test_the_smoke_and_the_city_run_on_both_clocks() -> None:
    for name in ("smoke", "city-300"):
        assert {fault.kind for fault in load(name).faults} <= set(ON_REAL_CLOCK)


def test_events_of_all_crowds_are_heard_once_and_whole(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.touch()
    ear = Ear(files, Tally())

    files[0].write_bytes(b'{"at": 1.0, "event": "asked"}\n{"at": 3.0, "ev')
    files[1].write_bytes(b'{"at": 2.0, "event": "asked"}\n')
    ear.listen()
    with files[0].open("ab") as stream:
        stream.write(b'ent": "asked"}\n')
    ear.listen()
    ear.listen()

    assert [event["at"] for event in ear.heard] == [1.0, 2.0, 3.0]
    assert ear.tally.events["asked"] == 3
