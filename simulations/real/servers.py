"""Broker, hub and workers of a run on the real clock, and what faults do to them."""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from simulations.broker import Kind
from simulations.processes import Program
from simulations.site import Site, broker, hub, worker
from simulations.world.world import DATABASE

_NO_BYTES = 1  # of a file, beyond which nothing is written


@dataclass(slots=True)
class Server:
    """A program that may be killed, stopped where it is, and started again."""

    open: Callable[..., AbstractContextManager[Program]]  # `waits` until it listens, or not
    _stack: ExitStack = field(default_factory=ExitStack)
    _program: Program | None = None

    def start(self, *, waits: bool = False) -> None:
        """Starts it; returns when it listens if `waits`."""
        self._program = self._stack.enter_context(self.open(waits=waits))

    def kill(self) -> None:
        """SIGKILL."""
        program, self._program = self._program, None
        if program is not None:
            program.kill()
        self._stack.close()

    def stall(self) -> None:
        """SIGSTOP."""
        if self._program is not None:
            self._program.stall()

    def go_on(self) -> None:
        """SIGCONT."""
        if self._program is not None:
            self._program.go_on()

    def fill_disk(self) -> None:
        """None of its files takes a byte more."""
        if self._program is not None:
            self._program.limit_files(_NO_BYTES)

    def make_room(self) -> None:
        """Its files may grow again."""
        if self._program is not None:
            self._program.limit_files(None)

    def check(self) -> None:
        """Raises ProgramError if it has ended without being told to."""
        if self._program is not None and not self._program.is_running:
            raise self._program.failure(f"ended with exit code {self._program.process.returncode}")

    def stop(self) -> None:
        """SIGTERM."""
        self._program = None
        self._stack.close()


@dataclass(slots=True)
class WriteLock:
    """Somebody else writes to a SQLite database, and does not come to an end."""

    file: Path
    _stack: ExitStack = field(default_factory=ExitStack)

    def take(self) -> None:
        """From now on nobody else writes."""
        connection = self._stack.enter_context(
            closing(sqlite3.connect(self.file, isolation_level=None, timeout=30.0))
        )
        connection.execute("BEGIN IMMEDIATE")

    def leave(self) -> None:
        """Everybody may write again."""
        self._stack.close()


@dataclass(frozen=True, slots=True)
class Servers:
    """All that agents need, by role."""

    broker: Server
    workers: list[Server]  # the first one is the hub
    lock: WriteLock

    @property
    def all(self) -> list[Server]:
        """In the order in which they start."""
        return [self.broker, *self.workers]


def servers_of(site: Site, workers: int, kind: Kind) -> Servers:
    """Servers that are not started yet."""
    others = [Server(partial(worker, site, f"worker-{number}")) for number in range(1, workers)]
    return Servers(
        broker=Server(partial(broker, site, kind)),
        workers=[Server(partial(hub, site)), *others],
        lock=WriteLock(site.state("hub") / DATABASE),
    )
