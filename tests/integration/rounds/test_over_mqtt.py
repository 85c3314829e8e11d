"""Rounds over a broker, with hub and nodes as processes: the same bits as inside one process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cloud_hub.rounds.conduct import run_number
from cloud_hub.rounds.exchange import number_of
from cloud_hub.store import rounds as store
from cloud_hub.store.database import Database, insert_new
from cloud_hub.store.revision import migrate
from cloud_hub.store.rounds import DatabaseLedger, Run
from cloud_hub.store.tables import NodeRow
from fleet.federation import client_app
from fleet.federation.ledger import Commit, FolderLedger
from fleet.federation.local_grid import LocalGrid
from fleet.federation.plan import Plan
from fleet.federation.rounds import Rounds
from fleet.federation.task import Task
from fleet.ids import NodeId
from tests.services import Mosquitto
from tests.unit.federation.toy import PLAN as TOY_PLAN
from tests.unit.federation.toy import make_node, toy_head

ROOT = Path(__file__).parents[3]
NODES = [NodeId(f"node-{letter}") for letter in "abc"]
WAIT_S = 150.0
KILLS, MOST_WORK_S = 5, 0.4
PLAN = replace(TOY_PLAN, least_nodes=len(NODES), query_s=100.0, deadline_s=120.0)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@dataclass
class Fleet:
    """A hub and nodes around one broker, each a process that can be killed."""

    folder: Path
    port: int
    plan: Plan
    hub: str = "hub"  # the module that conducts
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def prepare(self) -> None:
        toy_head().save(self.folder / "head.npz")
        config = {name.replace("_", "-"): value for name, value in asdict(self.plan).items()}
        config["head"] = str(self.folder / "head.npz")
        (self.folder / "plan.json").write_text(json.dumps(config))
        for seed, node in enumerate(NODES):
            make_node(self.folder / node, seed)

    def start(self, name: str) -> None:
        arguments = [str(self.port), str(self.folder)]
        module = self.hub
        if name != "hub":
            module, arguments = "node", [str(self.port), name, str(self.folder / name)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"tests.integration.rounds.{module}", *arguments],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> list[str]:
        path = self.folder / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []

    def trained(self, name: str) -> list[str]:
        return [line for line in self.log(name) if line.startswith("train ")]

    def wait(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not what():
            assert time.monotonic() < deadline, {
                name: self.log(name)[-5:] for name in self.processes
            }
            time.sleep(0.02)

    def finish(self) -> list[Commit]:
        self.wait(lambda: self.processes["hub"].poll() is not None)
        assert self.processes["hub"].returncode == 0, self.log("hub")[-20:]
        ledger = self.folder / "ledger"
        return FolderLedger(ledger).history() if ledger.exists() else []


@contextmanager
def fleet(folder: Path, port: int, plan: Plan = PLAN, hub: str = "hub") -> Iterator[Fleet]:
    """A fleet at work."""
    made = Fleet(folder, port, plan, hub)
    made.prepare()
    try:
        for name in (*NODES, "hub"):
            made.start(name)
        yield made
    finally:
        for name in list(made.processes):
            made.kill(name)


def in_one_process(folder: Path, plan: Plan = PLAN) -> Commit:
    """The last round of the same run on an in-process grid."""
    nodes = {number_of(node): make_node(folder / node, seed) for seed, node in enumerate(NODES)}
    ledger = FolderLedger(folder / "local")
    with LocalGrid(client_app.app, nodes, run=run_number("toy")) as grid:
        last = Rounds(grid, Task(toy_head()), plan, ledger).run()
    assert last is not None
    return last


def assert_same_bits(one: Commit, other: Commit, outcomes: Sequence[str] = ("kept",)) -> None:
    assert one.outcome == other.outcome
    assert one.outcome in outcomes
    for name, value in one.change.items():
        np.testing.assert_array_equal(value, other.change[name])


@pytest.mark.broker
def test_over_a_broker_rounds_give_the_bits_of_one_process(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    with fleet(tmp_path, mosquitto.port) as running:
        commits = running.finish()

    assert len(commits) == PLAN.rounds
    assert_same_bits(commits[-1], in_one_process(tmp_path / "again"))
    assert all(each.part == "used" for each in commits[-1].participants)
    assert all(each.bytes_up > 0 < each.bytes_down for each in commits[-1].participants)
    for node in NODES:
        assert len(set(running.trained(node))) == len(running.trained(node)) == PLAN.rounds


@pytest.mark.broker
def test_a_killed_hub_goes_on_and_nobody_trains_again(tmp_path: Path, mosquitto: Mosquitto) -> None:
    with fleet(tmp_path, mosquitto.port) as running:
        running.wait(lambda: any(line.startswith("1 train") for line in running.log("hub")))
        running.wait(lambda: bool(running.trained(NODES[0])))
        running.kill("hub")
        running.start("hub")
        commits = running.finish()

    assert_same_bits(commits[-1], in_one_process(tmp_path / "again"))
    for node in NODES:
        assert len(set(running.trained(node))) == len(running.trained(node)) == PLAN.rounds


@pytest.mark.broker
def test_a_killed_node_comes_back_into_the_round(tmp_path: Path, mosquitto: Mosquitto) -> None:
    with fleet(tmp_path, mosquitto.port) as running:
        running.wait(lambda: any(line.startswith("1 train") for line in running.log("hub")))
        running.kill(NODES[1])
        running.start(NODES[1])
        commits = running.finish()

    assert_same_bits(commits[-1], in_one_process(tmp_path / "again"))


@pytest.mark.broker
def test_a_killed_broker_costs_time_and_nothing_else(tmp_path: Path, mosquitto: Mosquitto) -> None:
    with fleet(tmp_path, mosquitto.port) as running:
        running.wait(lambda: any(line.startswith("1 train") for line in running.log("hub")))
        mosquitto.stop(signal.SIGKILL)
        mosquitto.start()
        commits = running.finish()

    assert_same_bits(commits[-1], in_one_process(tmp_path / "again"))
    for node in NODES:
        assert len(set(running.trained(node))) == len(running.trained(node)) == PLAN.rounds


@pytest.mark.broker
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hub_killed_at_random_points_ends_with_the_same_bits_from_its_database(
    tmp_path: Path, mosquitto: Mosquitto, seed: int
) -> None:
    plan, rng = replace(PLAN, rounds=4), np.random.default_rng(seed)
    database = begun(tmp_path, plan)
    kills = 0
    with fleet(tmp_path, mosquitto.port, plan, "database_hub") as running:
        while kills < KILLS:
            so_far = len(running.log("hub"))
            running.wait(partial(has_moved, running, so_far))
            time.sleep(rng.uniform(0, MOST_WORK_S))
            if has_ended(running):
                break
            running.kill("hub")
            running.start("hub")
            kills += 1
        running.finish()

    ledger = DatabaseLedger(database, "toy", str)
    last, now = ledger.last(), datetime.now(UTC)
    assert last is not None
    assert kills >= 2
    assert_same_bits(last, in_one_process(tmp_path / "again", plan))
    with database.read() as connection:
        run, rounds = store.run_of(connection, "toy", now), store.rounds_of(connection, "toy")
    assert (run.state, run.holder, [each.number for each in rounds]) == ("done", "", [1, 2, 3, 4])
    for each in rounds:
        assert [name for name, part in each.nodes if part.part == "used"] == NODES
    for node in NODES:
        assert len(set(running.trained(node))) == len(running.trained(node)) == plan.rounds


@pytest.mark.broker
def test_whoever_is_killed_at_random_points_the_bits_are_the_same(
    tmp_path: Path, mosquitto: Mosquitto
) -> None:
    """`CIAR_ROUND_KILLS=30` kills as often, in more rounds."""
    wanted = int(os.environ.get("CIAR_ROUND_KILLS", KILLS))
    plan, rng = replace(PLAN, rounds=wanted), np.random.default_rng(4)
    database, victims = begun(tmp_path, plan), ("hub", "broker", *NODES)
    killed = dict.fromkeys(victims, 0)
    with fleet(tmp_path, mosquitto.port, plan, "database_hub") as running:
        while sum(killed.values()) < wanted:
            so_far = len(running.log("hub"))
            running.wait(partial(has_moved, running, so_far))
            time.sleep(rng.uniform(0, MOST_WORK_S))
            if has_ended(running):
                break
            name = victims[rng.integers(len(victims))]
            if name == "broker":
                mosquitto.stop(signal.SIGKILL)
                mosquitto.start()
            else:
                running.kill(name)
                running.start(name)
            killed[name] += 1
        running.finish()

    last = DatabaseLedger(database, "toy", str).last()
    assert last is not None
    assert sum(killed.values()) >= wanted / 2
    # After many rounds there may be nothing left to gain.
    outcomes = ("kept", "discarded")
    assert_same_bits(last, in_one_process(tmp_path / "again", plan), outcomes)
    for node in NODES:
        trained = running.trained(node)
        assert len(set(trained)) == plan.rounds
        # Nobody is asked again for what it answered; who dies before the answer trains anew.
        assert len(trained) - len(set(trained)) <= killed[node]


def has_moved(running: Fleet, lines: int) -> bool:
    """Whether the hub has said more than so many lines, or has ended."""
    return has_ended(running) or len(running.log("hub")) > lines


def has_ended(running: Fleet) -> bool:
    return running.processes["hub"].poll() is not None


def begun(folder: Path, plan: Plan) -> Database:
    """A database that holds the run, and knows the nodes."""
    database, now, head = Database(f"sqlite:///{folder / 'hub.db'}"), datetime.now(UTC), toy_head()
    migrate(database)
    run = Run("toy", "waiting", "by a test", "", asdict(plan), "d", head.version, {}, now, None)
    texts = dict.fromkeys(("boot_id", "state", "agent_version", "device_version", "family"), "")
    seen = {"facts": {}, "pictures": 0, "outbox_records": 0}
    moments = {"first_seen_at": now, "last_seen_at": now}
    with database.write() as connection:
        store.begin(connection, run, head.to_bytes())
        for node in NODES:
            row = {"node_id": node, **texts, **seen, **moments}
            connection.execute(insert_new(connection, NodeRow), row)
    return database
