"""Federated rounds of many nodes in one process: time, memory and bytes, round by round.

The nodes are stand-ins: a small head, and samples of a cloud that has moved away from it.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fleet.federation.client_app import app
from fleet.federation.ledger import Commit, FolderLedger
from fleet.federation.local_grid import LocalGrid
from fleet.federation.plan import Plan
from fleet.federation.rounds import Rounds
from fleet.federation.task import Task
from simulations.learners import RANK, learner, stand_in_head

_PAGES_MIB = 4096 / (1 << 20)


@dataclass(frozen=True, slots=True)
class RoundCost:
    """One round; processor time and memory are of the process with all nodes in it."""

    round: int
    outcome: str
    used: int  # nodes
    node_ms: float  # processor time a node
    memory_mib: float  # resident, after the round
    kb_down: float  # a node
    kb_up: float  # a node
    loss: float  # of the aggregate, on the nodes' held-out samples


def bench(*, nodes: int, rounds: int) -> list[RoundCost]:
    """Runs rounds one by one, as a hub would that is started anew for each."""
    with TemporaryDirectory() as folder:
        task = Task(stand_in_head())
        ledger = FolderLedger(Path(folder) / "ledger")
        with LocalGrid(app, {n: learner(Path(folder) / str(n), n) for n in range(nodes)}) as grid:
            return [_measure(grid, task, ledger, number + 1) for number in range(rounds)]


def _measure(grid: LocalGrid, task: Task, ledger: FolderLedger, number: int) -> RoundCost:
    plan = Plan(rounds=number, rank=RANK, steps=2, least_samples=50, deadline_s=1800, query_s=600)
    begin = time.process_time()
    commit = Rounds(grid, task, plan, ledger).run()
    spent_s = time.process_time() - begin
    if commit is None:
        raise AssertionError("a round that ended is in its ledger")
    return _cost(commit, spent_s)


def _cost(commit: Commit, spent_s: float) -> RoundCost:
    used = [each for each in commit.participants if each.part == "used"]
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return RoundCost(
        round=commit.number,
        outcome=commit.outcome,
        used=len(used),
        node_ms=1e3 * spent_s / max(len(used), 1),
        memory_mib=pages * _PAGES_MIB,
        kb_down=float(np.mean([each.bytes_down for each in used])) / 1e3,
        kb_up=float(np.mean([each.bytes_up for each in used])) / 1e3,
        loss=commit.figures["loss_after"],
    )
