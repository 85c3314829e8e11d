"""A world on the virtual clock: it repeats, it keeps every law, and it finds what breaks one."""

import os
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from simulations.history.events import read_events
from simulations.profile import load_profile
from simulations.runs import examine, run
from simulations.scenarios.chaos import with_trouble
from simulations.scenarios.files import load, parse
from simulations.scenarios.scenario import Scenario
from simulations.world.clock import VirtualTimeLoop
from simulations.world.machine import machine
from simulations.world.world import DATABASE, EVENTS, Order, rehearse

ONE_RUN = """
import sys
from pathlib import Path
from simulations.profile import load_profile
from simulations.runs import run
from simulations.scenarios.chaos import with_trouble
from simulations.scenarios.files import load
from simulations.world.world import Order
run(Order(with_trouble(load("search"), 5, 4), 5, Path(sys.argv[1]), load_profile()))
"""


def tiny(**values: object) -> Scenario:
    base = {"name": "tiny", "about": "A test.", "devices": 2, "seconds": 6.0, "grid": 4}
    return parse({**base, "arrivals": {"per_minute": 30}, **values}, source="a test")


def order(scenario: Scenario, out: Path, seed: int = 1) -> Order:
    return Order(scenario, seed, out, load_profile())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_seed_gives_the_same_log_bit_for_bit_in_another_process(tmp_path: Path) -> None:
    for name in ("one", "other"):
        environment = {**os.environ, "PYTHONHASHSEED": str(len(name))}
        subprocess.run(
            [sys.executable, "-c", ONE_RUN, str(tmp_path / name)],
            env=environment,
            check=True,
            timeout=280,
        )

    one, other = ((tmp_path / name / EVENTS).read_bytes() for name in ("one", "other"))

    assert b'"made"' in one
    assert one == other


def test_pictures_are_made_and_every_law_holds(tmp_path: Path) -> None:
    found = run(order(tiny(), tmp_path))

    assert found.violations == []
    assert found.tally.made == found.tally.events["asked"] > 0
    assert found.tally.fallbacks[""] == found.tally.made


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["kill-agents", "kill-worker", "kill-broker", "stop-database"])
def test_every_law_holds_through_a_fault(tmp_path: Path, kind: str) -> None:
    fault = {"kind": kind, "at_s": 2.0, "for_s": 3.0}

    found = run(order(tiny(faults=[fault], seconds=8.0), tmp_path))

    assert found.violations == []
    assert [event["state"] for event in found.events if event["event"] == "fault"] == [
        "begins",
        "ends",
    ]


def test_a_record_taken_out_of_the_database_is_missed(tmp_path: Path) -> None:
    run(order(tiny(), tmp_path))

    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("DELETE FROM generation WHERE id = (SELECT MIN(id) FROM generation)")

    laws = {each.law for each in examine(tmp_path, 30.0, None)}

    assert {"nothing is lost", "sums are those of rows"} <= laws


def test_a_slower_device_takes_longer_and_another_seed_makes_other_pictures(
    tmp_path: Path,
) -> None:
    fast = run(order(tiny(kinds=[{"name": "fast", "speed": 4.0}]), tmp_path / "fast"))
    slow = run(order(tiny(kinds=[{"name": "slow", "speed": 0.25}]), tmp_path / "slow"))
    again = run(order(tiny(), tmp_path / "again", seed=2))

    assert slow.tally.latency_s(0.5) > 2 * fast.tally.latency_s(0.5)
    assert {e["image"] for e in slow.made} == {e["image"] for e in fast.made}
    assert {e["image"] for e in again.made} != {e["image"] for e in fast.made}


def test_trouble_follows_from_the_seed() -> None:
    scenario = load("search")

    assert with_trouble(scenario, 1, 5) == with_trouble(scenario, 1, 5)
    assert with_trouble(scenario, 1, 5) != with_trouble(scenario, 2, 5)
    assert len(with_trouble(scenario, 1, 5).faults) == 5


def test_a_machine_gives_the_loops_time_and_the_seeds_luck_and_takes_them_back() -> None:
    def ids(seed: int) -> tuple[float, list[str]]:
        loop = VirtualTimeLoop()
        try:
            with machine(loop, seed, epoch_s=1e9):
                return time.time(), [uuid.uuid4().hex for _ in range(3)]
        finally:
            loop.close()

    assert ids(1) == ids(1)
    assert ids(1)[0] == 1e9
    assert ids(1)[1] != ids(2)[1]
    assert time.time() > 1e9
    assert uuid.uuid4() != uuid.uuid4()


def test_events_read_back_are_those_that_were_said(tmp_path: Path) -> None:
    found = run(order(tiny(seconds=2.0), tmp_path))

    assert list(read_events(tmp_path / EVENTS)) == list(found.events)
    assert found.events[0]["event"] == "world"
    assert found.events[-1]["event"] in ("worker", "node")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_threads_on_the_real_clock_make_the_same_pictures_and_no_sooner(tmp_path: Path) -> None:
    wanted = tiny(seconds=4.0, hub={"speed": 0.2}, kinds=[{"name": "slow", "speed": 0.1}])
    virtual = run(order(wanted, tmp_path / "virtual"))

    tally = rehearse(order(wanted, tmp_path / "real"))

    real = {
        (event["node"], event["wish"]): event
        for event in read_events(tmp_path / "real" / EVENTS)
        if event["event"] == "made" and not event["fallback"]
    }
    assert real
    for event in virtual.made:
        if (event["node"], event["wish"]) in real:
            assert event["image"] == real[event["node"], event["wish"]]["image"]
    assert virtual.tally.latency_s(0.5) <= 1.1 * tally.latency_s(0.5)
