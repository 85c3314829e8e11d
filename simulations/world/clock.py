"""An event loop whose clock jumps to the next timer, so that no law depends on a machine's speed.

Time passes only where somebody sleeps: what is computed takes none. There are no threads in it and
no sockets. If nothing is left that could ever happen, it says so instead of hanging.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DeadlockError(AssertionError):
    """Every task waits for something that nobody will do."""


class _Selector(selectors.DefaultSelector):
    """Moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            raise DeadlockError("all tasks wait, and no timer is set")
        if not events:
            self.now += max(timeout or 0.0, 0.0)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual.now


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` does, on a clock that jumps."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
