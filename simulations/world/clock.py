"""An event loop whose clock jumps to the next timer, so that no law depends on a machine's speed.

Time passes only where somebody sleeps or works: what is computed takes none. There are no sockets
in it, and no threads: what is handed to one (`asyncio.to_thread`) runs in a greenlet of the loop's
own thread. It takes the time that it `work`s, during which the loop goes on, so a draft under way
sees a verdict that arrives, as it does in the field. If nothing is left that could ever happen,
the loop says so instead of hanging.

A fleet's hour is a hundred million events, so what asyncio does around an event is left out
where it has no purpose here: a selector, a thread's wake-up, comparing timers in Python.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_FEW = 128  # cancelled timers that are never worth a clean-up
_WHEN, _CALLBACK, _ARGUMENTS, _LOOP = 0, 2, 3, 5


class DeadlockError(AssertionError):
    """Every task waits for something that nobody will do."""


class _Call(list[Any]):
    """A callback that is due: when (0: at once), its number, callback, arguments, context, loop.

    It takes the place of `asyncio.TimerHandle`: a list is made, and compared in the heap, without
    a line of Python, which counts a few thousand times a picture.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """See `asyncio.Handle.cancel`."""
        if self[_CALLBACK] is not None:
            self[_CALLBACK], self[_ARGUMENTS] = None, ()
            if self[_WHEN]:
                self[_LOOP].timer_cancelled()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module. What is due at one moment happens in the order in which it was asked for."""

    _stopping: bool  # asyncio's own

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._soon: deque[_Call] = deque()
        self._timers: list[_Call] = []
        self._set = 0  # timers so far
        self._cancelled = 0  # timers in the heap that were cancelled, or nearly so many
        self._tolerated = _FEW
        self._plain = copy_context()
        # What executors of one thread do last.
        self._lone: WeakKeyDictionary[Executor, asyncio.Future[Any]] = WeakKeyDictionary()

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> Any:
        """See `asyncio.loop.call_soon`."""
        own = copy_context() if context is None else context
        call = _Call((0.0, 0, callback, args, own, self))
        self._soon.append(call)
        return call

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> Any:
        """See `asyncio.loop.call_later`."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> Any:
        """See `asyncio.loop.call_at`."""
        if when <= self._now:
            return self.call_soon(callback, *args, context=context)
        self._set += 1
        own = copy_context() if context is None else context
        call = _Call((when, self._set, callback, args, own, self))
        heappush(self._timers, call)
        return call

    @property
    def timers(self) -> int:
        """How many are set, with those that were cancelled and are still held."""
        return len(self._timers)

    def timer_cancelled(self) -> None:
        """Most timers are cancelled: the heap is cleared of them now and then."""
        self._cancelled += 1
        if self._cancelled > self._tolerated:
            self._timers = [timer for timer in self._timers if timer[_CALLBACK] is not None]
            heapify(self._timers)
            self._cancelled = 0
            self._tolerated = max(_FEW, len(self._timers))

    def run_in_executor(  # type: ignore[override]  # a plain future, as any await takes it
        self,
        executor: Executor | None,
        func: Callable[..., T],
        *args: Any,
    ) -> "asyncio.Future[T]":
        """Runs `func` at once, up to its first `work`; there are no threads, of any executor.

        What an executor of one thread gets waits for what it got before.
        """
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

        begin = greenlet(run).switch
        last = self._lone.get(executor) if executor is not None else None
        if executor is not None and getattr(executor, "_max_workers", None) == 1:
            self._lone[executor] = done
        if last is None or last.done():
            begin()
        else:
            last.add_done_callback(lambda _: begin())
        return done

    def work(self, seconds: float) -> None:
        """Lets time pass for the function that was handed to a thread and calls this.

        Raises:
            RuntimeError: The event loop itself would block.
        """
        thread = getcurrent()
        if thread.parent is None:
            raise RuntimeError("something on the event loop sleeps: it would hold up everything")
        until = self._now + seconds
        if not self._soon and (not self._timers or self._timers[0][_WHEN] > until):
            self._now = until  # nothing can happen meanwhile
            return
        self._set += 1
        heappush(self._timers, _Call((until, self._set, thread.switch, (), self._plain, self)))
        thread.parent.switch()

    def _run_once(self) -> None:
        """All that is due at one moment, in the order in which it was asked for."""
        soon = self._soon
        if not soon:
            self._jump()
        while soon and not self._stopping:
            _, _, callback, arguments, context, _ = call = soon.popleft()
            if callback is None:
                continue
            try:
                context.run(callback, *arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  # as asyncio does
                self.call_exception_handler(
                    {"message": f"exception in {callback}", "exception": error, "handle": call}
                )

    def _jump(self) -> None:
        """Moves the clock to the next timer, and what is due then to what comes soon.

        Raises:
            DeadlockError: There is none.
        """
        timers = self._timers
        while timers and timers[0][_CALLBACK] is None:
            heappop(timers)
        if not timers:
            raise DeadlockError("all tasks wait, and no timer is set")
        self._now = now = timers[0][_WHEN]
        while timers and timers[0][_WHEN] == now:
            self._soon.append(heappop(timers))


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` does, on a clock that jumps."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
