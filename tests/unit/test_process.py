"""Commands: signals end them, our errors become a sentence and an exit code."""

import asyncio
import os
import signal

import click
import pytest
from click.testing import CliRunner

from fleet.errors import BundleError, FleetError, InvalidInputError
from fleet.process import command_errors, run_until_signal


def command_that_raises(error: BaseException) -> click.Command:
    @click.command()
    @command_errors
    def fail() -> None:
        raise error

    return fail


# Which kinds there are must not depend on what other tests imported before.
KINDS = [kind for kind in FleetError.__subclasses__() if kind.__module__ == "fleet.errors"]


@pytest.mark.parametrize("kind", KINDS)
def test_our_error_is_one_line_on_stderr_and_its_exit_code(kind: type[FleetError]) -> None:
    result = CliRunner().invoke(command_that_raises(kind("it is\nso")), [])

    assert (kind.exit_code, "Error: it is so\n", "") == (
        result.exit_code,
        result.stderr,
        result.stdout,
    )


def test_our_error_from_a_task_is_found_in_its_group() -> None:
    group = BaseExceptionGroup("tasks", [ExceptionGroup("inner", [BundleError("no hash")])])

    result = CliRunner().invoke(command_that_raises(group), [])

    assert (BundleError.exit_code, "Error: no hash\n") == (result.exit_code, result.stderr)


def test_a_bug_beside_our_error_keeps_its_traceback() -> None:
    group = ExceptionGroup("tasks", [BundleError("no hash"), ZeroDivisionError("bug")])

    result = CliRunner().invoke(command_that_raises(group), [])

    assert result.exception is group


def test_what_a_command_returns_is_passed_on() -> None:
    assert 7 == command_errors(lambda number: number)(7)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_and_the_work_closes(number: signal.Signals) -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append("yes")

    run_until_signal(work())

    assert ["yes"] == closed


def test_a_second_sigterm_does_not_disturb_the_closing() -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            closed.append("yes")

    run_until_signal(work())

    assert ["yes"] == closed


def test_a_second_sigint_ends_the_closing() -> None:
    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    run_until_signal(work())


def test_work_that_ends_by_itself_needs_no_signal() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    run_until_signal(work())


def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError, match="no"):
        run_until_signal(work())
