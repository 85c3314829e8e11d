"""The training process as the agent holds it: started when needed, paused at once, ended at will.

It is a process of its own so that the agent stays small and a picture gets the processor within
milliseconds, whatever torch is doing: a pause is a signal, not a request.
"""

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgpack

from fleet.errors import FleetError

LOOK_S = 0.05  # between two looks at whether a picture is wanted
_NEEDS = ("torch", "flwr", "onnx")


class WorkerError(FleetError):
    """The training process ended before it answered."""


def missing() -> str:
    """Which packages this device lacks to train, or nothing."""
    return ", ".join(name for name in _NEEDS if find_spec(name) is None)


class Worker:
    """One training process at most; one request at a time."""

    def __init__(self, arguments: Sequence[Path], is_wanted: Callable[[], bool]) -> None:
        """`arguments` are the process's; `is_wanted` says whether somebody waits for a picture."""
        self._arguments = [str(each) for each in arguments]
        self._is_wanted = is_wanted
        self._process: Process | None = None
        self.is_paused = False

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer; while a picture is wanted the process stands still.

        Raises:
            WorkerError: The process ended.
        """
        while self._is_wanted():  # noqa: ASYNC110 - the same look as while it runs
            await asyncio.sleep(LOOK_S)
        process = self._process = self._process or await self._start()
        data = msgpack.packb(request)
        pauses = asyncio.create_task(self._yield_to_pictures(process), name="training pauses")
        try:
            assert process.stdin is not None  # noqa: S101 - it was asked for
            assert process.stdout is not None  # noqa: S101
            process.stdin.write(len(data).to_bytes(4, "big") + data)
            await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(4), "big")
            answer: dict[str, Any] = msgpack.unpackb(await process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self._process = None
            raise WorkerError("the training process ended before it answered") from error
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            pauses.cancel()
            await asyncio.wait([pauses])
        return answer

    async def rebase(self, arguments: Sequence[Path]) -> None:
        """Other arguments from now on; what the process was computing is asked for again."""
        self._arguments = [str(each) for each in arguments]
        await self.close()

    async def close(self) -> None:
        """Ends the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleet.federation.worker", *self._arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=None,
            start_new_session=True,  # a Ctrl-C at the terminal is for the agent
        )

    async def _yield_to_pictures(self, process: Process) -> None:
        try:
            while True:
                if self._is_wanted() != self.is_paused:
                    self._signal(process, pause=not self.is_paused)
                await asyncio.sleep(LOOK_S)
        finally:
            if self.is_paused:
                self._signal(process, pause=False)

    def _signal(self, process: Process, *, pause: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP if pause else signal.SIGCONT)
        self.is_paused = pause
