"""Whatever is wrong, the commands end with one sentence and the documented exit code."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY
from simulations.processes import Program, free_port
from simulations.site import Site, device

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def run(
    *arguments: str, settings: Mapping[str, str], deadline_s: float = 90
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One line on stderr that starts with "Error", holds all `words`, and no traceback."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("Error")
    for word in words:
        assert word in sentence


@pytest.fixture
def lonely(tmp_path: Path, models: Path) -> dict[str, str]:
    """Settings of a device with no broker."""
    return {
        "EDGE_AGENT_STATE_DIR": str(tmp_path / "agent"),
        "EDGE_AGENT_BUNDLE": str(models / DEVICE_FOLDER),
        "EDGE_AGENT_PUBLIC_KEY": str(models / PUBLIC_KEY),
        "EDGE_AGENT_BROKER__PORT": str(free_port()),
        "EDGE_AGENT_GENERATION__START_PATIENCE_S": "0.2",
    }


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("", ("no words",)),
        (" : !", ("no words",)),
        ("heart " * 17, ("17 words", "16")),
        ("google: red heart of qwertzuiop", ("qwertzuiop", "unknown")),
    ],
)
def test_a_caption_that_cannot_be_read_is_named(
    lonely: dict[str, str], tmp_path: Path, caption: str, words: tuple[str, ...]
) -> None:
    target = tmp_path / "picture.png"

    done = run("edge_agent", "generate", caption, "-o", str(target), settings=lonely)

    assert_refused(done, 2, *words)
    assert not target.exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    lonely: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "nowhere" / "picture.png"

    done = run("edge_agent", "generate", "google: red heart", "-o", str(target), settings=lonely)

    assert_refused(done, 9, str(target.parent))


def test_no_broker_is_an_error_only_for_who_insists(lonely: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "picture.png"
    asked = ("edge_agent", "generate", "google: red heart", "-o", str(target))

    insisting = run(*asked, "--without-cloud", "fail", settings=lonely)
    content = run(*asked, settings=lonely)

    assert_refused(insisting, 3, "broker")
    assert content.returncode == 0
    assert "broker" in content.stderr
    assert target.exists()


def test_a_bundle_with_another_byte_is_named(lonely: dict[str, str], tmp_path: Path) -> None:
    forged = tmp_path / "bundle"
    shutil.copytree(lonely["EDGE_AGENT_BUNDLE"], forged)
    graph = forged / "step.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")

    done = run("edge_agent", "run", settings={**lonely, "EDGE_AGENT_BUNDLE": str(forged)})

    assert_refused(done, 4, "step.onnx")


def test_a_manifest_of_another_signer_is_refused(lonely: dict[str, str], tmp_path: Path) -> None:
    forged = tmp_path / "bundle"
    shutil.copytree(lonely["EDGE_AGENT_BUNDLE"], forged)
    manifest = json.loads((forged / "manifest.json").read_text())
    manifest["prefix_tokens"] = 0
    (forged / "manifest.json").write_text(json.dumps(manifest))

    done = run("edge_agent", "run", settings={**lonely, "EDGE_AGENT_BUNDLE": str(forged)})

    assert_refused(done, 4, "manifest.json", "signed")


def test_a_misspelt_setting_is_named(lonely: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[generation]\ntresh = 0.3\n")

    done = run("edge_agent", "settings", "--config", str(config), settings=lonely)

    assert_refused(done, 2, "tresh")


def test_a_status_without_an_agent_says_how_to_start_one(lonely: dict[str, str]) -> None:
    done = run("edge_agent", "status", settings=lonely)

    assert_refused(done, 3, "edge_agent run")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        done = run(
            "cloud_hub",
            "serve",
            settings={"CLOUD_HUB_DATA_DIR": str(tmp_path), "CLOUD_HUB_BROKER__PORT": port},
        )

    assert_refused(done, 6, port)


@pytest.mark.parametrize(
    ("revision", "sentence"), [("ffffffffffff", "later release"), (None, "earlier release")]
)
def test_a_database_of_another_revision_is_refused(
    tmp_path: Path, revision: str | None, sentence: str
) -> None:
    settings = {"CLOUD_HUB_DATA_DIR": str(tmp_path), "CLOUD_HUB_BROKER__PORT": str(free_port())}
    assert run("cloud_hub", "migrate", settings=settings).returncode == 0
    with closing(sqlite3.connect(tmp_path / "hub.db")) as connection, connection:
        connection.execute("DELETE FROM alembic_version")  # behind: as before any migration
        if revision is not None:  # ahead: as a later release leaves it
            connection.execute("INSERT INTO alembic_version VALUES (?)", (revision,))

    done = run("cloud_hub", "query", "devices", settings=settings)

    assert_refused(done, 5, sentence)


def test_a_store_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hub.db").write_text("this is no database, only some text of sufficient length")

    done = run("cloud_hub", "migrate", settings={"CLOUD_HUB_DATA_DIR": str(tmp_path)})

    assert_refused(done, 5, "hub.db")


def test_a_setting_that_a_device_refuses_is_an_error_and_the_next_one_is_not(
    site: Site, own_broker: Program
) -> None:
    hub = {"CLOUD_HUB_BROKER__HOST": "127.0.0.1", "CLOUD_HUB_BROKER__PORT": str(site.port)}
    with device(site, "kitchen", EDGE_AGENT_GENERATION__START_PATIENCE_S="0"):
        refused = run("cloud_hub", "configure", "kitchen", "generation.budget=1.5", settings=hub)
        taken = run("cloud_hub", "configure", "kitchen", "generation.effort=full", settings=hub)

    assert own_broker.is_running
    assert_refused(refused, 2, "kitchen keeps its own value")
    assert "refused: generation.budget Input should be less than 1" in refused.stderr
    # What was refused before is told again, and is not what was asked for now.
    assert taken.returncode == 0, taken.stderr
    assert 'generation.effort = "full"' in taken.stdout
    assert "refused: generation.budget" in taken.stderr
