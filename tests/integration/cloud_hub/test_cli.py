"""The command line as its users meet it: real processes, sentences and exit codes."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud_hub.store.database import Database
from cloud_hub.store.records import Reported, store_batch
from cloud_hub.store.revision import migrate
from fleet.ids import BootId, NodeId, new_id
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import GenerationOpened, HubStatus, Receipt
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from tests.integration.cloud_hub.model_folder import CAPTION, write_model
from tests.services import free_port
from tests.unit.cloud_hub.records import open_message, record

COMMAND = [sys.executable, "-c", "from cloud_hub.cli import main; main()"]
PATIENCE_S = 100  # processes that import torch, on a machine that does something else


def settings(folder: Path, **more: str) -> dict[str, str]:
    """An environment with settings of this test alone."""
    mine = {"CLOUD_HUB_DATA_DIR": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    return os.environ | mine | {f"CLOUD_HUB_{name}": value for name, value in more.items()}


def run(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The ended command."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def refused(ended: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line on stderr of a command that was refused."""
    lines = ended.stderr.strip().splitlines()
    assert (ended.returncode, len(lines)) == (code, 1), ended.stderr
    return lines[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family") / "cloud"
    write_model(folder)
    return folder


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A folder whose database holds two pictures of one node."""
    with Database(f"sqlite:///{tmp_path / 'data' / 'hub.db'}") as database:
        migrate(database)
        reports = [Reported(NodeId("n1"), record(sequence=n), b"") for n in (1, 2)]
        store_batch(database, reports, [], datetime.now(UTC))
    return tmp_path


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, click\n"
        "from click.testing import CliRunner\n"
        "from cloud_hub.cli import main\n"
        "shown = CliRunner().invoke(main, ['--help'])\n"
        "assert shown.exit_code == 0 and 'serve' in shown.output, shown.output\n"
        "heavy = {'torch', 'sqlalchemy', 'alembic', 'pydantic', 'numpy', 'structlog', 'rich'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.timeout(PATIENCE_S)
def test_settings_are_shown_without_their_secrets(tmp_path: Path) -> None:
    environment = settings(tmp_path, STORE__URL="postgresql://me:secret@host/db")

    ended = run(["settings"], environment | {"CLOUD_HUB_BROKER__PASSWORD": "secret"})

    assert ended.returncode == 0, ended.stderr
    assert "secret" not in ended.stdout
    assert json.loads(ended.stdout)["engine"]["cache_mib"] == 256


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["serve", "--config", "absent.toml"], 2, "absent.toml"),
        (["query", "devices", "--since", "soon"], 2, "such as 90m"),
        (["query", "generations"], 5, "no database at"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    assert sentence in refused(run(arguments, settings(tmp_path)), code)
    assert not (tmp_path / "data").exists()


@pytest.mark.timeout(PATIENCE_S)
def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text("[engine]\ncache_mb = 3\n")

    ended = run(["serve", "--config", str(tmp_path / "hub.toml")], settings(tmp_path))

    assert "engine.cache_mib" in refused(ended, 2)


@pytest.mark.timeout(PATIENCE_S)
def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        ended = run(["serve"], settings(tmp_path, BROKER__PORT=str(port)))

    assert f"port {port}" in refused(ended, 6)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("UPDATE alembic_version SET version_num = 'future'", "later release"),
        ("DELETE FROM alembic_version", "cloud_hub migrate"),
    ],
)
def test_a_database_of_another_revision_is_refused(
    stored: Path, change: str, sentence: str
) -> None:
    with sqlite3.connect(stored / "data" / "hub.db") as connection:
        connection.execute(change)
    connection.close()

    ended = run(["query", "devices"], settings(stored))

    assert sentence in refused(ended, 5)


@pytest.mark.timeout(PATIENCE_S)
def test_a_model_folder_that_is_none_is_named(tmp_path: Path) -> None:
    environment = settings(tmp_path, MODEL=str(tmp_path / "nothing"), BROKER__PORT=str(free_port()))

    ended = run(["serve"], environment)

    assert ended.returncode == 4, ended.stderr
    assert "nothing" in ended.stderr.strip().splitlines()[-1]


@pytest.mark.timeout(PATIENCE_S)
def test_a_database_is_made_when_asked_for(tmp_path: Path) -> None:
    made = run(["migrate"], settings(tmp_path))

    assert "stands at revision" in made.stdout
    assert (tmp_path / "data" / "hub.db").exists()


@pytest.mark.timeout(PATIENCE_S)
def test_devices_are_shown_as_a_table(stored: Path) -> None:
    ended = run(["query", "devices"], settings(stored))

    assert ended.returncode == 0, ended.stderr
    assert "corrected" in ended.stdout
    assert "n1" in ended.stdout


@pytest.mark.timeout(2 * PATIENCE_S)
def test_devices_and_pictures_are_given_as_json(stored: Path) -> None:
    environment = settings(stored)

    rows = json.loads(run(["query", "devices", "--json", "--since", "1h"], environment).stdout)
    latest = json.loads(run(["query", "generations", "--json"], environment).stdout)

    assert [(row["node_id"], row["pictures"]) for row in rows] == [("n1", 2)]
    assert [row["tokens"] for row in latest] == [256, 256]


@pytest.fixture
def served(tmp_path: Path, model: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A hub as a process with a trial broker of its own, and the broker's port."""
    port = free_port()
    process = subprocess.Popen(
        [*COMMAND, "serve"],
        env=settings(tmp_path, MODEL=str(model), BROKER__PORT=str(port), ENGINE__CACHE_MIB="8"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready"):
                break
        assert any("trial broker" in line for line in lines), lines
        yield process, port
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_S)
async def test_a_hub_without_configuration_serves_records_and_leaves(
    served: tuple["subprocess.Popen[str]", int], tmp_path: Path
) -> None:
    process, port = served
    node, boot = NodeId("n1"), BootId(new_id())
    async with (
        connect(BrokerSettings(port=port), client_id="n1") as device,
        device.subscribe(topics.inbox(node, boot), qos=0, limit=9) as inbox,
        device.subscribe(topics.HUB_STATES, qos=1, limit=9) as states,
    ):
        asked = open_message(boot_id=boot, family="tiny", caption=CAPTION, prefix_tokens=2)
        await device.publish(topics.open_request(node), encode(asked), qos=0)
        opened = decode((await anext(inbox)).payload)
        await device.publish(topics.record(node), encode(record(boot_id=boot)), qos=1)
        receipt = decode((await anext(inbox)).payload)
        born = decode((await anext(states)).payload)
        process.send_signal(signal.SIGTERM)
        left = decode((await anext(states)).payload)

    began = time.monotonic()
    assert process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began < PATIENCE_S
    assert isinstance(opened, GenerationOpened)
    assert isinstance(receipt, Receipt)
    assert isinstance(born, HubStatus)
    assert isinstance(left, HubStatus)
    assert (born.up, left.up, born.family) == (True, False, "tiny")
    rows = run(["query", "devices", "--json"], settings(tmp_path)).stdout
    assert json.loads(rows)[0]["pictures"] == 1
