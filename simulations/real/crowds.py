"""The processes that a run's agents live in, through all their lives."""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from simulations.processes import Program, program
from simulations.real.crowd import CrowdOrder, write_order
from simulations.real.ear import Ear
from simulations.site import Site


@dataclass(slots=True)
class Crowd:
    """The process of some devices; after a kill the next one finds their disks as they are."""

    name: str
    nodes: list[str]
    order: CrowdOrder  # of its first life
    site: Site
    ear: Ear
    _lives: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)
    _program: Program | None = None

    @property
    def is_running(self) -> bool:
        """Whether it lives; raises ProgramError if it ended in a bad way."""
        if self._program is None or self._program.is_running:
            return self._program is not None
        if code := self._program.process.returncode:
            raise self._program.failure(f"ended with exit code {code}")
        return False

    def start(self) -> None:
        """Starts it, or starts it again; does not wait."""
        self._events.touch()
        self.ear.files.append(self._events)
        wishes = {node: self.ear.next_wish[node] for node in self.nodes}
        order = replace(self.order, events=str(self._events), first_wishes=wishes)
        file = self._events.with_suffix(".json")
        write_order(file, order)
        arguments = ["simulations.real.crowd", str(file)]
        log = self.site.log(self.name)
        self._program = self._stack.enter_context(program(self.name, arguments, {}, log))

    def wait_ready(self, deadline: float) -> None:
        """Returns when its agents are there.

        Raises:
            ProgramError: They are not in time, or it has ended.
        """
        present = self._program
        if present is not None:
            present.wait_for("become ready", lambda: present.says("ready\n"), deadline)

    def kill(self, at: float) -> None:
        """SIGKILL, unless its devices are done already."""
        present, self._program = self._program, None
        if present is None or not present.is_running:
            self._program = present
            return
        present.kill()
        self._stack.close()
        self.ear.died(at, self._events, self.nodes)
        self._lives += 1

    def start_again(self) -> None:
        """Starts it, if it was killed."""
        if self._program is None:
            self.start()

    def stall(self) -> None:
        """SIGSTOP."""
        if self._program is not None:
            self._program.stall()

    def go_on(self) -> None:
        """SIGCONT."""
        if self._program is not None:
            self._program.go_on()

    def stop(self) -> None:
        """SIGTERM."""
        self._stack.close()

    @property
    def _events(self) -> Path:
        return self.site.folder / "state" / f"{self.name}-life-{self._lives}.jsonl"
