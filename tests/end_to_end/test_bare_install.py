"""The install without extras is an agent that does not train, and the wheel holds all of it."""

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distributions, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HELP_S = 0.5

pytestmark = pytest.mark.alone

# Runs with the names of all modules that the bare install lacks as its first argument.
AGENT_WITHOUT_EXTRAS = """
import importlib, json, sys

blocked = set(json.loads(sys.argv[1]))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not part of the bare install", name=name)

sys.meta_path.insert(0, Absent())
for name in ("edge_agent.cli", "edge_agent.app", "edge_agent.client", "fleet.models.onnx_model"):
    importlib.import_module(name)
print(json.dumps({"file": sys.modules["edge_agent.cli"].__file__, "modules": sorted(sys.modules)}))
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(roots: list[str]) -> set[str]:
    """All distributions that `roots` pull in, without extras."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        requirement = waiting.pop()
        name = normal(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
        if "extra ==" not in requirement and name not in found:
            found.add(name)
            waiting += installed_requirements(name)
    return found


def installed_requirements(name: str) -> list[str]:
    known = {normal(distribution.metadata["Name"]) for distribution in distributions()}
    return requires(name) or [] if name in known else []


def modules_beyond_the_bare_install() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    present = needed(project["dependencies"]) | {"ciar-fleet"}
    return [
        module
        for module, owners in packages_distributions().items()
        if not present & {normal(owner) for owner in owners}
    ]


def imported_by_the_agent(*, cwd: Path, path: Path | None) -> tuple[Path, set[str]]:
    blocked = modules_beyond_the_bare_install()
    assert {"torch", "sqlalchemy", "alembic"} <= set(blocked)
    environment = os.environ | ({"PYTHONPATH": str(path)} if path is not None else {})
    done = subprocess.run(
        [sys.executable, "-c", AGENT_WITHOUT_EXTRAS, json.dumps(blocked)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
        timeout=15,
    )
    assert not done.returncode, done.stderr
    told = json.loads(done.stdout)
    return Path(told["file"]), {module.split(".")[0] for module in told["modules"]}


def test_the_agent_imports_with_every_extra_blocked() -> None:
    _, imported = imported_by_the_agent(cwd=ROOT, path=None)

    assert not {"torch", "sqlalchemy", "flwr", "onnx", "cloud_hub", "simulations"} & imported


@pytest.mark.parametrize("command", ["edge_agent", "cloud_hub"])
def test_help_takes_less_than_half_a_second(command: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [Path(sys.executable).parent / command, "--help"], capture_output=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    assert b"Usage:" in done.stdout
    # Processor time, so that a busy machine does not fail it.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < HELP_S


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_wheel_holds_models_and_migrations_and_runs_as_an_agent(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("ciar_fleet-*.whl")
    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)

    file, imported = imported_by_the_agent(cwd=tmp_path, path=unpacked)

    assert file.is_relative_to(unpacked)
    assert "torch" not in imported
    assert list(unpacked.glob("migrations/**/*.py"))
    assert [] == [
        path
        for path in (ROOT / "fleet/reference").rglob("*")
        if path.is_file() and not (unpacked / path.relative_to(ROOT)).exists()
    ]
