"""Every bench one after the other, each in a process of its own, as one entry of the log."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from fleet.errors import InvalidInputError, OutputError

BENCHES: dict[str, tuple[str, ...]] = {
    "transport": (),
    "records": (),
    "step": (),
    "device": (),
    "head": ("--small",),
    "agent": (),
    "rules": (),
    "rounds": (),
    "engine": (),
    "precision": (),
    "world": (),
    "clocks": (),
}
_LONGEST_S = 3600.0
_PACKAGES = ("torch", "onnxruntime", "numpy", "flwr")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a bench printed, or why it printed nothing."""

    command: str
    output: str
    seconds: float


def measure(names: Sequence[str], done: Callable[[Measured], None]) -> list[Measured]:
    """Runs the benches of those names; one that fails says why and stops no other.

    Raises:
        InvalidInputError: There is no bench of a name.
    """
    for name in names:
        if name not in BENCHES:
            raise InvalidInputError(f"there is no bench {name!r}: there are {', '.join(BENCHES)}")
    found = []
    for name in names:
        found.append(_run(name))
        done(found[-1])
    return found


def entry(found: Sequence[Measured]) -> str:
    """The entry of the log."""
    today = datetime.now(UTC).date().isoformat()
    blocks = [f"`{one.command}` ({one.seconds:.0f} s)\n\n```\n{one.output}\n```" for one in found]
    return "\n\n".join([f"## {today} · All benches", _machine(), *blocks]) + "\n"


def add_to(log: Path, text: str) -> None:
    """Puts an entry before the newest one of a log.

    Raises:
        OutputError: The file cannot be read or written.
    """
    try:
        before, mark, after = log.read_text(encoding="utf-8").partition("\n## ")
        log.write_text(f"{before}\n{text}{mark}{after}", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{log} cannot be written: {error.strerror}") from error


def _run(name: str) -> Measured:
    arguments = ["simulations", "bench", name, *BENCHES[name]]
    began = datetime.now(UTC)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
        output = done.stdout.strip() if not done.returncode else done.stderr.strip()[-2000:]
    except subprocess.TimeoutExpired:
        output = f"took longer than {_LONGEST_S:.0f} s"
    seconds = (datetime.now(UTC) - began).total_seconds()
    return Measured(f"python -m {' '.join(arguments)}", output, seconds)


def _machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return (
        f"{platform.machine()}, {_processor()}, {os.cpu_count()} cores, {platform.system()}"
        f" {platform.release()}, Python {platform.python_version()}, {packages}; load {load}."
    )


def _processor() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "processor unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "processor unknown"
