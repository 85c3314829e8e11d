"""Every bench one after the other, each in a process of its own, as one entry of the log."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from fleet.errors import InvalidInputError, OutputError
from simulations.tables import FIGURES, Table, drawn, shown

BENCHES: dict[str, tuple[str, ...]] = {
    "transport": (),
    "records": (),
    "queries": (),
    "step": (),
    "device": (),
    "drafter": (),
    "head": ("--small",),
    "agent": (),
    "rules": (),
    "rounds": (),
    "flower": (),
    "engine": (),
    "precision": (),
    "decoding": (),
    "world": (),
    "clocks": (),
    "kills": (),
    "deaths": (),
}
# Each within a minute or two of a machine at rest; what needs its size to say something says less.
QUICK: dict[str, tuple[str, ...]] = {
    "transport": ("--rounds", "100"),
    "records": ("--count", "1000"),
    "queries": ("--pictures", "100000", "--rows", "10000", "--repeats", "3"),
    "step": ("--rounds", "50"),
    "device": ("--pictures", "1"),
    "drafter": ("--size", "B", "--rounds", "2"),
    "head": ("--small", "--rounds", "20"),
    "agent": ("--pictures", "1", "--rtt", "20"),
    "rules": ("--pictures", "2"),
    "rounds": ("--nodes", "20", "--rounds", "3"),
    "flower": ("--nodes", "2", "--rounds", "1"),
    "engine": ("--seconds", "3", "--devices", "16", "--sessions", "1,32", "--fleets", "1,8"),
    "precision": ("--pictures", "8", "--rounds", "3"),
    "decoding": ("--tokens", "64", "--rounds", "1"),
    "world": ("--devices", "10,100", "--seconds", "20"),
    "clocks": ("--seconds", "10"),
    "kills": ("--count", "3"),
    "deaths": ("--count", "2"),
}
_LONGEST_S = 3600.0
_PACKAGES = ("torch", "onnxruntime", "numpy", "flwr")
_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Measured:
    """What a bench found, or why it found nothing."""

    command: str
    output: str
    seconds: float  # of all its runs


def measure(
    names: Sequence[str],
    done: Callable[[Measured], None],
    *,
    repeats: int = 1,
    quick: bool = False,
) -> list[Measured]:
    """Runs the benches of those names; one that fails says why and stops no other.

    Raises:
        InvalidInputError: There is no bench of a name.
    """
    for name in names:
        if name not in BENCHES:
            raise InvalidInputError(f"there is no bench {name!r}: there are {', '.join(BENCHES)}")
    found = []
    for name in names:
        found.append(_run(name, QUICK[name] if quick else BENCHES[name], repeats))
        done(found[-1])
    return found


def entry(found: Sequence[Measured], repeats: int = 1) -> str:
    """The entry of the log."""
    today = datetime.now(UTC).date().isoformat()
    facts = [_machine()]
    if repeats > 1:
        facts.append(f"Where {repeats} runs differ: the median, and the lowest and the highest.")
    blocks = [f"`{one.command}` ({one.seconds:.0f} s)\n\n```\n{one.output}\n```" for one in found]
    return "\n\n".join([f"## {today} · All benches", "\n".join(facts), *blocks]) + "\n"


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


def joined(runs: Sequence[Sequence[Table]]) -> str:
    """The tables of one bench's runs as one text, with the spread of each figure.

    Raises:
        ValueError: The runs have other tables.
    """
    return "\n\n".join(drawn(_joined(tables), _WIDTH) for tables in zip(*runs, strict=True))


def _joined(tables: Sequence[Table]) -> list[dict[str, str]]:
    rows = zip(*tables, strict=True)
    return [{name: _spread([row[name] for row in same]) for name in same[0]} for same in rows]


def _spread(values: Sequence[Any]) -> str:
    texts = [shown(value) for value in values]
    if len(set(texts)) == 1:
        return texts[0]
    if not all(isinstance(value, int | float) for value in values):
        return " / ".join(texts)
    numbers = (float(median(values)), float(min(values)), float(max(values)))
    return "{} ({}-{})".format(*map(shown, numbers))


def _run(name: str, options: Sequence[str], repeats: int) -> Measured:
    arguments = ["simulations", "bench", name, *options]
    command, began = f"python -m {' '.join(arguments)}", time.monotonic()
    try:
        output = joined([_tables(arguments) for _ in range(repeats)])
    except subprocess.CalledProcessError as error:
        output = f"exit code {error.returncode}: {error.stderr.strip()[-2000:]}"
    except subprocess.TimeoutExpired:
        output = f"took longer than {_LONGEST_S:.0f} s"
    except ValueError:
        output = "its runs have different tables: measure it alone"
    return Measured(command, output, time.monotonic() - began)


def _tables(arguments: Sequence[str]) -> list[Table]:
    """One run's, as `simulations.tables` hands them over."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures"
        file.touch()
        subprocess.run(
            [sys.executable, "-m", *arguments],
            env={**os.environ, FIGURES: str(file)},
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=True,
        )
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


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
