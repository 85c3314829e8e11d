"""What a command line does around its work: stop on signals, end on errors with a sentence."""

import asyncio
import functools
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ParamSpec, TypeVar

import click

from fleet.errors import FleetError

P = ParamSpec("P")
R = TypeVar("R")


def run_until_signal(main: Coroutine[Any, Any, None]) -> None:
    """Runs `main` until it ends by itself, or SIGTERM or SIGINT cancels it.

    The first signal cancels and `main` closes what it opened; a second SIGINT cancels what
    still closes. A cancellation by signal is a normal end: nothing is raised.
    """
    asyncio.run(_until_signal(main))


async def _until_signal(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(main, name="main")
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        # A supervisor may send SIGTERM twice; only a person's second Ctrl-C is impatience.
        if not received or number is signal.SIGINT:
            task.cancel()
        received.append(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise


def command_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turns a `FleetError` of a click command into one line on stderr and its exit code.

    Errors that tasks of a TaskGroup raised count too, unless one of them is a bug: then the
    traceback is the better answer.
    """

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (FleetError, BaseExceptionGroup) as error:
            refusal = _refusal(error)
            if refusal is None:
                raise
            click.echo(f"Error: {' '.join(str(refusal).split())}", err=True)
            raise SystemExit(refusal.exit_code) from error

    return guarded


def _refusal(error: BaseException) -> FleetError | None:
    """The first error of a group, if all of them are ours."""
    leaves = list(_leaves(error))
    first = leaves[0]
    if isinstance(first, FleetError) and all(isinstance(leaf, FleetError) for leaf in leaves):
        return first
    return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
