"""The systemd unit starts a command that exists, with settings that exist, and is closed in."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from edge_agent.settings import AgentSettings
from fleet.errors import BundleError, InvalidInputError

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "scripts" / "edge_agent.service"


def values(name: str) -> list[str]:
    lines = [line.partition("=") for line in UNIT.read_text().splitlines()]
    return [value for key, _, value in lines if key == name]


def test_it_runs_a_command_and_sets_a_setting_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (command,), (setting,) = values("ExecStart"), values("Environment")

    assert Path(command.split()[0]).name in project["scripts"]
    assert "run --config" in command
    assert setting.split("=")[0].removeprefix("EDGE_AGENT_").lower() in AgentSettings.model_fields


def test_what_another_try_does_not_cure_is_not_tried_again() -> None:
    (codes,) = values("RestartPreventExitStatus")

    assert [InvalidInputError.exit_code, BundleError.exit_code] == [int(n) for n in codes.split()]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CapabilityBoundingSet", ""),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("DynamicUser", "yes"),
        ("PrivateDevices", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
    ],
)
def test_it_is_closed_in(name: str, value: str) -> None:
    assert [value] == values(name)


def test_systemd_finds_no_fault_in_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / "edge_agent.service"
    copy.write_text(UNIT.read_text().replace("/usr/local/bin/edge_agent", "/bin/true"))

    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )

    assert "Unknown" not in done.stderr
