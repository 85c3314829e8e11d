"""Rounds on Flower's own engines: a SuperLink with SuperNodes, or with Ray, and `flwr run`.

The apps are the package's own, unmodified: the folder that `flwr run` submits holds nothing but
their names and the run's configuration. `python -m simulations.flower_engine SCRIPT …` runs one of
Flower's command lines.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from simulations.processes import Program, ProgramError, free_port, program

_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",  # one order of all sums
    "RAY_USAGE_STATS_ENABLED": "0",
}
_APP = """[project]
name = "ciar-rounds"
version = "1.0.0"
description = "Federated rounds of ciar-fleet"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "ciar"

[tool.flwr.app.components]
serverapp = "fleet.federation.server_app:app"
clientapp = "fleet.federation.client_app:app"

[tool.flwr.app.config]
"""
_LINK = """[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""

_WORKERS = 2  # of Ray
_FAILED = "Exit Code:"  # in the log of an engine that broke off

Run = Callable[[Mapping[str, Any]], None]


@contextmanager
def superlink(folder: Path, nodes: Sequence[Path], wait_s: float) -> Iterator[Run]:
    """What runs a configuration on a SuperLink with a SuperNode a node's folder.

    All of them are processes on the loopback interface, which end with the context; logs and
    Flower's own files lie in `folder`.

    Raises:
        ProgramError: One of them ended, or was not ready, or the run not over, within `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    with ExitStack() as stack:
        port, settings, server = stack.enter_context(_link(folder, deadline))
        for index, node in enumerate(nodes):
            options = ["--insecure", "--superlink", f"127.0.0.1:{port}"]
            options += ["--port", str(free_port()), "--node-config", f'folder="{node}"']
            script = _script("flower-supernode", *options)
            log = folder / f"node-{index}.log"
            stack.enter_context(_whole(f"SuperNode {index}", script, settings, log))

        def is_complete() -> bool:
            text = server.log.read_text(encoding="utf-8", errors="replace")
            return text.count("Activated node_id=") >= len(nodes)

        server.wait_for("see its nodes", is_complete, deadline)
        yield lambda config: _run(folder, settings, config, deadline)


@contextmanager
def simulation(folder: Path, nodes: int, wait_s: float) -> Iterator[Run]:
    """What runs a configuration on so many nodes that Ray's workers take turns to be.

    The configuration's `folder` has one of each node, called 0, 1 and so on. It needs Ray
    (`pip install "ciar-fleet[ray]"`), which listens on the loopback interface.

    Raises:
        ProgramError: As `superlink`.
    """
    deadline = time.monotonic() + wait_s
    with _link(folder, deadline, "--simulation") as (_, settings, _):
        size = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus={_WORKERS}"
        yield lambda config: _run(folder, settings, config, deadline, "--federation-config", size)


@contextmanager
def _link(
    folder: Path, deadline: float, *options: str
) -> Iterator[tuple[int, dict[str, str], Program]]:
    """A SuperLink that is up: its port, the environment of its company, and itself."""
    port, settings = free_port(), {**_QUIET, "FLWR_HOME": str(folder / "home")}
    (folder / "home").mkdir(parents=True)
    (folder / "home" / "config.toml").write_text(_LINK.format(port=port), encoding="utf-8")
    script = _script("flower-superlink", "--insecure", "--host", "127.0.0.1", *options)
    with _whole("SuperLink", [*script, "--port", str(port)], settings, folder / "link.log") as link:
        link.wait_for("listen", lambda: link.says("startup complete"), deadline)
        yield port, settings, link


@contextmanager
def _whole(
    name: str, script: list[str], settings: Mapping[str, str], log: Path
) -> Iterator[Program]:
    """A program until the context ends, and with it whatever it has started and left behind."""
    with program(name, script, settings, log) as running:
        try:
            yield running
        finally:
            started = list(_descendants(running.process.pid))
            running.stop()
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that these have (Linux)."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
        for child in map(int, text.split()):
            yield child
            yield from _descendants(child)


def _run(
    folder: Path,
    settings: Mapping[str, str],
    config: Mapping[str, Any],
    deadline: float,
    *options: str,
) -> None:
    app = folder / "app"
    app.mkdir(exist_ok=True)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
    (app / "pyproject.toml").write_text(_APP + lines, encoding="utf-8")
    script = _script("flwr", "run", str(app), "here", "--stream", *options)
    with program("flwr run", script, settings, folder / "run.log") as running:
        try:
            running.wait_for("end", lambda: False, deadline)
        except ProgramError:
            if running.is_running or running.process.returncode:
                raise
        if running.says(_FAILED):  # `flwr run` ends with 0 all the same
            raise running.failure("failed")


def _script(name: str, *arguments: str) -> list[str]:
    return ["simulations.flower_engine", name, *arguments]


if __name__ == "__main__":
    (found,) = entry_points(group="console_scripts", name=sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.exit(found.load()())
