"""The notebooks run from top to bottom over a real log, and say what queries say."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from cloud_hub.export import export
from cloud_hub.store import answers
from cloud_hub.store.database import Database
from cloud_hub.store.periods import Period
from cloud_hub.store.revision import migrate
from fleet.transport.memory import MemoryBroker
from tests.integration.cloud_hub.hub import PATIENCE_S, make_hub
from tests.integration.edge_agent.test_late_checks import checked, joined, made, serving

NOTEBOOKS = Path(__file__).parents[3] / "docs" / "notebooks"
PICTURES = 6
CELL_S = 600  # of a machine that does something else

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * CELL_S)]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a hub keeps of pictures that a device made alone, checked later."""
    folder = tmp_path_factory.mktemp("fleet")
    with Database(f"sqlite:///{folder / 'hub.db'}") as found:
        migrate(found)
        asyncio.run(_make_pictures(found, folder))
        yield found


async def _make_pictures(database: Database, folder: Path) -> None:
    broker = MemoryBroker()
    async with joined(broker, folder) as running:
        for seed in range(PICTURES):
            await made(running, seed)
        async with serving(broker, make_hub(database)):
            assert await running.delivery.flush(PATIENCE_S)
            await checked(database, PICTURES)


@pytest.fixture(scope="module")
def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    export(database, folder)
    return folder


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A notebook's outputs, by cell; a cell that fails raises."""
    monkeypatch.setenv("FLEET_LOG", str(folder))
    monkeypatch.setenv("IPYTHONDIR", str(folder.parent / "ipython"))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=CELL_S, startup_timeout=CELL_S, kernel_name="python3")
    client.execute(cwd=os.fspath(folder))
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def images(outputs: list[Any]) -> int:
    return sum("image/png" in output.get("data", {}) for cell in outputs for output in cell)


def test_the_fleet_s_notebook_shows_the_numbers_of_the_queries(
    log: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = run("fleet", log, monkeypatch)

    assert images(outputs) == 3
    with database.read() as connection:
        (truth,) = answers.spot_checks(connection, [], Period()).records()
    said = re.search(r"(\d+) of (\d+) checked tokens", outputs[-1][0]["data"]["text/plain"])
    assert said is not None
    assert [int(n) for n in said.groups()] == [truth["mismatched"], truth["checked"]]
    assert truth["checked"] > 0


def test_the_tokens_notebook_draws_a_picture_s_scores_and_how_reliable_they_are(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = run("tokens", log, monkeypatch)

    assert images(outputs) == 2


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_its_outputs(path: Path) -> None:
    code = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]

    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)
