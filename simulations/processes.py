"""Programs that a simulation starts: each with a log of its own, a deadline, and a sure end.

Only processes that were started here are ever ended, by their own ids.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import FleetError, RequestTimeout

_POLL_S = 0.05
_GOODBYE_S = 8.0
_TAIL_LINES = 15


class ProgramError(FleetError):
    """A program that the simulation started has ended, or said nothing in time.

    Attributes:
        tail: The last lines of its log.
    """

    def __init__(self, sentence: str, tail: str = "") -> None:
        super().__init__(sentence)
        self.tail = tail


@dataclass(frozen=True, slots=True)
class Program:
    """A running program and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:]) or "(the log is empty)"

    def wait_for(self, what: str, happened: Callable[[], bool], deadline: float) -> None:
        """Returns when `happened` says so.

        Args:
            what: What is waited for, to complete the sentence "... did not <what> in time".
            happened: Asked again and again; must not block.
            deadline: On the clock of `time.monotonic`.

        Raises:
            ProgramError: The program ended, or the deadline passed; with the log's last lines.
        """
        while not happened():
            if not self.is_running:
                raise self.failure(f"ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise self.failure(f"did not {what} in time")
            time.sleep(_POLL_S)

    def says(self, text: str) -> bool:
        """Whether its log holds `text`."""
        return text in self.log.read_text(encoding="utf-8", errors="replace")

    def failure(self, sentence: str) -> ProgramError:
        """An error about this program, with the end of its log."""
        return ProgramError(f"{self.name} {sentence}: see {self.log}", self.tail())

    def kill(self) -> None:
        """Ends it at once, as a crash would (SIGKILL), and waits for that."""
        self.go_on()  # so that children which stand still see its end
        if self.is_running:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(_GOODBYE_S)

    def kill_family(self) -> None:
        """Ends it and what it has started itself, all at once."""
        family = _children(self.process.pid)
        self.kill()
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def memory_bytes(self) -> int:
        """What of it is in memory now, as Linux tells it; 0 once it has ended."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").split("\n")
        except OSError:
            return 0
        return next((int(line.split()[1]) << 10 for line in lines if line[:6] == "VmRSS:"), 0)

    def stall(self) -> None:
        """Lets it stand still, with what it has started itself (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets it go on where it stood (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def limit_files(self, size: int | None) -> None:
        """Lets no file that it writes grow beyond some bytes (RLIMIT_FSIZE), or any; Linux only."""
        if self.is_running:
            _, most = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
            wanted = (most if size is None else size, most)
            resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, wanted)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            for pid in (self.process.pid, *_children(self.process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def stop(self) -> int:
        """Asks it to end (SIGTERM), insists after some seconds, and returns its exit code."""
        if self.is_running:
            self.go_on()  # one that stands still hears nothing
            self.process.terminate()
        try:
            return self.process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


@contextmanager
def program(
    name: str, arguments: list[str], settings: Mapping[str, str], log: Path
) -> Iterator[Program]:
    """A Python program (`python -m ...`) until the context ends.

    Args:
        name: What it is called in sentences.
        arguments: Module name and arguments.
        settings: Environment variables on top of the present ones.
        log: Receives all that it writes; lines are appended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **settings, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C in the terminal is for the simulation, which then stops its programs.
            start_new_session=True,
        )
    running = Program(name, process, log)
    try:
        yield running
    finally:
        running.stop()


def _children(pid: int) -> list[int]:
    """The processes that a process has started, as Linux tells it."""
    try:
        return [
            int(each)
            for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        ]
    except OSError:
        return []


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether somebody listens on a port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def remaining(deadline: float) -> float:
    """Seconds until `deadline` on the clock of `time.monotonic`.

    Raises:
        RequestTimeout: It has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise RequestTimeout("the simulation took longer than it may: see its logs")
    return left
