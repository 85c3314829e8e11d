"""Rounds on Flower's own engine: a SuperLink and SuperNodes as processes, and `flwr run`.

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

Run = Callable[[Mapping[str, Any]], None]


@contextmanager
def superlink(folder: Path, nodes: Sequence[Path], wait_s: float) -> Iterator[Run]:
    """What runs a configuration on a SuperLink with a SuperNode a node's folder.

    All of them are processes on the loopback interface, which end with the context; logs and
    Flower's own files lie in `folder`.

    Raises:
        ProgramError: One of them ended, or was not ready, or the run not over, within `wait_s`.
    """
    deadline, port = time.monotonic() + wait_s, free_port()
    settings = {**_QUIET, "FLWR_HOME": str(folder / "home")}
    (folder / "home").mkdir(parents=True)
    (folder / "home" / "config.toml").write_text(_LINK.format(port=port), encoding="utf-8")
    link = ["--insecure", "--host", "127.0.0.1", "--port", str(port)]
    with ExitStack() as stack:
        started = program(
            "SuperLink", _script("flower-superlink", *link), settings, folder / "link.log"
        )
        server = stack.enter_context(started)
        server.wait_for("listen", lambda: server.says("startup complete"), deadline)
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
    folder: Path, settings: Mapping[str, str], config: Mapping[str, Any], deadline: float
) -> None:
    app = folder / "app"
    app.mkdir(exist_ok=True)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
    (app / "pyproject.toml").write_text(_APP + lines, encoding="utf-8")
    script = _script("flwr", "run", str(app), "here", "--stream")
    with program("flwr run", script, settings, folder / "run.log") as running:
        try:
            running.wait_for("end", lambda: False, deadline)
        except ProgramError:
            if running.is_running or running.process.returncode:
                raise


def _script(name: str, *arguments: str) -> list[str]:
    return ["simulations.flower_engine", name, *arguments]


if __name__ == "__main__":
    (found,) = entry_points(group="console_scripts", name=sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.exit(found.load()())
