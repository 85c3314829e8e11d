"""The same apps on a SuperLink with SuperNodes, and on Ray: the bits of one process."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from fleet.federation import client_app
from fleet.federation.ledger import Commit, FolderLedger
from fleet.federation.local_grid import LocalGrid
from fleet.federation.rounds import Rounds
from fleet.federation.task import Task
from simulations.flower_engine import simulation, superlink
from simulations.processes import ProgramError
from tests.unit.federation.toy import PLAN as TOY_PLAN
from tests.unit.federation.toy import make_node, toy_head

SAMPLES = (150, 170, 190)  # which node is which, whatever number Flower gives it
PLAN = replace(TOY_PLAN, rounds=1, least_nodes=3, query_s=500.0, deadline_s=500.0)
WAIT_S = 800.0  # each message starts a process, which imports torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(WAIT_S + 100)]


def test_a_superlink_and_supernodes_give_the_bits_of_one_process(tmp_path: Path) -> None:
    folders = make_nodes(tmp_path)

    with superlink(tmp_path / "flower", folders, WAIT_S) as run:
        run({**PLAN.to_config(), **places(tmp_path)})

    assert_as_in_one_process(tmp_path, folders)


@pytest.mark.skipif(not find_spec("ray"), reason="needs Ray: pip install ciar-fleet[ray]")
def test_ray_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    folders = make_nodes(tmp_path)

    with simulation(tmp_path / "flower", len(folders), WAIT_S) as run:
        run({**PLAN.to_config(), **places(tmp_path), "folder": str(tmp_path)})

    assert_as_in_one_process(tmp_path, folders)


@pytest.mark.skipif(bool(find_spec("ray")), reason="Ray is there")
def test_without_ray_a_simulation_says_what_is_missing(tmp_path: Path) -> None:
    """`flwr run` itself ends as if all were well."""
    folders = make_nodes(tmp_path)

    with (
        simulation(tmp_path / "flower", len(folders), WAIT_S) as run,
        pytest.raises(ProgramError, match="flwr run failed: see") as caught,
    ):
        run({**PLAN.to_config(), **places(tmp_path), "folder": str(tmp_path)})

    assert "Extra dependencies required for simulation are missing" in caught.value.tail


def make_nodes(folder: Path) -> list[Path]:
    folders = [folder / str(index) for index in range(len(SAMPLES))]
    for index, count in enumerate(SAMPLES):
        make_node(folders[index], index, count)
    return folders


def places(folder: Path) -> dict[str, str]:
    toy_head().save(folder / "head.npz")
    return {"head": str(folder / "head.npz"), "ledger": str(folder / "ledger")}


def assert_as_in_one_process(folder: Path, folders: list[Path]) -> None:
    (commit,) = FolderLedger(folder / "ledger").history()
    assert [each.part for each in commit.participants] == ["used"] * len(SAMPLES)
    ordered = sorted(commit.participants, key=lambda each: each.examples)
    here = in_one_process(folder / "again", [each.node for each in ordered], folders)
    assert here.outcome == commit.outcome == "kept"
    for name, value in here.change.items():
        np.testing.assert_array_equal(commit.change[name], value)


def test_which_node_has_which_number_matters(tmp_path: Path) -> None:
    """So the equality above is of what these nodes trained, and of nothing that any would."""
    folders = [tmp_path / str(index) for index in range(2)]
    for index in range(2):
        make_node(folders[index], index, SAMPLES[index])

    plain, crossed = (
        in_one_process(tmp_path / f"ledger-{order[0]}", list(order), folders)
        for order in permutations((11, 12))
    )

    assert not np.array_equal(plain.change["center"], crossed.change["center"])


def in_one_process(ledger: Path, numbers: list[int], folders: list[Path]) -> Commit:
    """The same round on an in-process grid, each folder under its node's number."""
    nodes = {n: {"folder": str(folder)} for n, folder in zip(numbers, folders, strict=True)}
    plan = replace(PLAN, least_nodes=len(nodes))
    with LocalGrid(client_app.app, nodes) as grid:
        last = Rounds(grid, Task(toy_head()), plan, FolderLedger(ledger)).run()
    assert last is not None
    return last
