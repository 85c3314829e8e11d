"""The bench of kills runs, goes on where it was, and notices what is missing."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import InvalidInputError
from simulations.kills.agent import ledger_of
from simulations.kills.bench import Order, bench
from tests.services import mosquitto_program, postgres_programs

pytestmark = [
    pytest.mark.alone,
    pytest.mark.broker,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that another account may enter, as pytest's own may not be."""
    if mosquitto_program() is None or postgres_programs() is None:
        pytest.skip("mosquitto or PostgreSQL is not installed")
    made = Path(tempfile.mkdtemp(prefix="ciar-test-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_killed_and_paused_programs_lose_nothing_and_a_run_goes_on(folder: Path) -> None:
    said: list[str] = []

    first = bench(Order(folder, count=2, seed=3, agents=1, rate=20, pause_s=1), said.append)
    with ledger_of(folder, "agent-0").open("a") as ledger:
        ledger.write("none 1\n")
    again = bench(Order(folder, count=3, seed=3, agents=1, rate=20), said.append)

    assert [(each.lost, each.doubled) for each in first] == [(0, 0)]
    assert 0 < first[0].made <= first[0].stored < again[0].stored
    assert 1 < first[0].hub_mib < 1000
    # What the ledger names and nobody sent is lost.
    assert [(each.lost, each.doubled) for each in again] == [(1, 0)]
    kills = [each for each in said if each.startswith("kill ")]
    assert [each.split(":")[0] for each in kills] == [
        "kill 1 of 2",
        "kill 2 of 2",
        "kill 3 of 3",
    ]
    with pytest.raises(InvalidInputError, match="--seed 3"):
        bench(Order(folder, count=3, seed=4, agents=1, rate=20), said.append)
