"""An event loop whose clock jumps to the next timer, so that no law depends on a machine's speed.

Time passes only where somebody sleeps or works: what is computed takes none. There are no sockets
in it, and no threads: what is handed to one (`asyncio.to_thread`) runs in a greenlet of the loop's
own thread. It takes the time that it `work`s, during which the loop goes on, so a draft under way
sees a verdict that arrives, as it does in the field. If nothing is left that could ever happen,
the loop says so instead of hanging.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")


class DeadlockError(AssertionError):
    """Every task waits for something that nobody will do."""


class _Selector(selectors.DefaultSelector):
    """Moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("all tasks wait, and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]  # a plain future, as any await takes it
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Runs `func` at once, up to its first `work`; there is no executor."""
        assert executor is None, "a virtual clock has no threads"
        done: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  # whoever awaits it answers it
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        greenlet(run).switch()
        return done

    def work(self, seconds: float) -> None:
        """Lets time pass for the function that was handed to a thread and calls this.

        Raises:
            RuntimeError: The event loop itself would block.
        """
        thread = getcurrent()
        if thread.parent is None:
            raise RuntimeError("something on the event loop sleeps: it would hold up everything")
        self.call_later(seconds, thread.switch)
        thread.parent.switch()


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` does, on a clock that jumps."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
