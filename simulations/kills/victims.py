"""A program that is killed and started again, and what it is found to be doing."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from simulations.processes import Program, listens, program

_FEW_TRIES = 5  # of a server that finds traces of its last life


@dataclass(slots=True)
class Victim:
    """One program through all its lives.

    Attributes:
        arguments: Its module and arguments.
        logs: Folder of its log.
        says: What it writes once it is ready; None where it listens instead.
        listens_on: A port of this machine, where it listens.
    """

    name: str
    arguments: list[str]
    logs: Path
    says: str | None
    listens_on: int = 0
    _lives: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)
    _program: Program | None = None

    def start(self) -> None:
        """Starts it; does not wait."""
        self._lives += 1
        log = self.logs / f"{self.name}-{self._lives}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)  # of an earlier run
        self._program = self._stack.enter_context(program(self.name, self.arguments, {}, log))

    def wait_ready(self, deadline: float) -> None:
        """Returns when it works.

        Raises:
            ProgramError: It does not in time, or ends again and again.
        """
        for _ in range(_FEW_TRIES - 1):
            if self._is_ready(deadline):
                return
            self.stop()
            self.start()
        self._running.wait_for("become ready", self._works, deadline)

    def _is_ready(self, deadline: float) -> bool:
        """Whether it came to work; false once it has ended instead."""
        while self._running.is_running and time.monotonic() < deadline:
            if self._works():
                return True
            time.sleep(0.05)
        return False

    def _works(self) -> bool:
        if self.says is None:
            return listens(self.listens_on)
        return self._running.says(self.says)

    def wait_ended(self, deadline: float) -> None:
        """Returns when it has ended well by itself.

        Raises:
            ProgramError: It has not by the deadline, or ended in a bad way.
        """
        running = self._running
        while running.is_running:
            if time.monotonic() > deadline:
                raise running.failure("did not come to its end in time")
            time.sleep(0.1)
        if code := running.process.returncode:
            raise running.failure(f"ended with exit code {code}")

    def check(self) -> None:
        """Raises ProgramError if it has ended by itself."""
        if not self._running.is_running:
            raise self._running.failure(f"ended with exit code {self._running.process.returncode}")

    def kill(self) -> None:
        """SIGKILL, to all of it."""
        self._running.kill_family()
        self._stack.close()

    def stall(self) -> None:
        """SIGSTOP, to all of it."""
        self._running.stall()

    def go_on(self) -> None:
        """SIGCONT."""
        self._running.go_on()

    def memory_bytes(self) -> int:
        """What it has in memory."""
        return self._running.memory_bytes()

    def stop(self) -> None:
        """SIGTERM."""
        self._stack.close()

    @property
    def _running(self) -> Program:
        assert self._program is not None, f"{self.name} was not started"
        return self._program
