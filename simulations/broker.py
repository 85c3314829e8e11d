"""A broker as a program of its own, for simulations in which a hub dies alone.

`python -m simulations.broker PORT` listens on 127.0.0.1 until it is told to stop: the trial broker,
or, with `--kind mosquitto`, the mosquitto of this machine, which takes over the process.
"""

import asyncio
import getpass
import os
import shutil
from typing import Literal

import click

from fleet.errors import InvalidInputError
from fleet.process import command_errors, run_until_signal
from fleet.transport.embedded import embedded_broker

Kind = Literal["trial", "mosquitto"]
KINDS: tuple[Kind, ...] = ("trial", "mosquitto")


@click.command()
@click.argument("port", type=click.IntRange(1, 65_535))
@click.option("--kind", type=click.Choice(KINDS), default="trial", show_default=True)
@command_errors
def main(port: int, kind: Kind) -> None:
    """Run a broker on 127.0.0.1:PORT."""
    if kind == "mosquitto":
        _become_mosquitto(port)
    run_until_signal(_serve(port))


def mosquitto_program() -> str:
    """Where mosquitto is.

    Raises:
        InvalidInputError: It is not installed.
    """
    path = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"  # Debian's place for servers
    if (found := shutil.which("mosquitto", path=path)) is None:
        raise InvalidInputError("mosquitto is not installed: take the trial broker, or install it")
    return found


def _become_mosquitto(port: int) -> None:
    # A file in memory, which ends with the process.
    settings = os.memfd_create("mosquitto.conf", flags=0)
    lines = (
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        "set_tcp_nodelay true",
        f"user {getpass.getuser()}",
    )
    os.write(settings, "\n".join(lines).encode() + b"\n")
    program = mosquitto_program()
    os.execv(program, [program, "-c", f"/proc/self/fd/{settings}"])  # noqa: S606  # no shell is wanted


async def _serve(port: int) -> None:
    async with embedded_broker(port) as settings:
        click.echo(f"ready on {settings.address}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
