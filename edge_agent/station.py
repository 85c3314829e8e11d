"""What a device keeps between starts: its state folder, its node id and the lock on both."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edge_agent.files import replace_text
from fleet.errors import InvalidInputError, OutputError
from fleet.ids import BootId, NodeId, new_id, node_id

_NODE_FILE = "node_id"
_BOOT_FILE = "boot_id"
_LOCK_FILE = "lock"
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Station:
    """One start of one node on one state folder, which nobody else uses meanwhile."""

    path: Path
    node: NodeId
    boot: BootId

    @property
    def outbox_path(self) -> Path:
        """The spool of records."""
        return self.path / "outbox.sqlite"

    @property
    def shelf_path(self) -> Path:
        """Pictures that wait to be corrected, and corrected ones."""
        return self.path / "pictures"

    @property
    def training_path(self) -> Path:
        """The folder of samples and of answers to rounds."""
        return self.path / "training"

    @property
    def models_path(self) -> Path:
        """Model versions that were fetched."""
        return self.path / "models"

    @property
    def desired_path(self) -> Path:
        """The settings that the operator wanted last."""
        return self.path / "desired.json"

    @property
    def api_path(self) -> Path:
        """Where a running agent says how to reach it."""
        return self.path / "api.json"


@contextmanager
def open_station(path: Path, name: str | None, *, patience_s: float) -> Iterator[Station]:
    """The station at `path` until the context ends; the folder is made if it is missing.

    Args:
        path: The state folder.
        name: The node id; None takes the one that was made at the first start.
        patience_s: Seconds to wait while another process uses the folder.

    Raises:
        InvalidInputError: Another agent uses the folder, or the node id is not usable.
        OutputError: The folder cannot be written.
    """
    with _writable(path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(lock, path, patience_s)
        with _writable(path):
            station = Station(path, node_id(name) if name else _own_id(path), BootId(new_id()))
            replace_text(path / _BOOT_FILE, station.boot)
        yield station
    finally:
        os.close(lock)  # which unlocks; the kernel does the same for a killed process


@cache
def agent_version() -> str:
    """The release that runs; a checkout that is not installed has none.

    Looked up once: every record and heartbeat names it, and a look-up reads a file.
    """
    try:
        return version("ciar-fleet")
    except PackageNotFoundError:
        return "unreleased"


def _lock(lock: int, path: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise InvalidInputError(
                    f"another agent works on the state folder {path}: stop it, or give this one"
                    " a folder of its own (setting state_dir)"
                ) from error
        time.sleep(_POLL_S)


def _own_id(path: Path) -> NodeId:
    """The id of this node, made at its first start."""
    file = path / _NODE_FILE
    if not file.exists():
        replace_text(file, f"node-{new_id()[:12]}")
    return node_id(file.read_text(encoding="utf-8").strip())


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"the state folder {path} cannot be used ({error.strerror}): free some space, correct"
            " its rights, or take another (setting state_dir)"
        ) from error
