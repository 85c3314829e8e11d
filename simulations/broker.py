"""The trial broker as a program of its own, for simulations in which a hub dies alone.

`python -m simulations.broker PORT` listens on 127.0.0.1 until it is told to stop.
"""

import asyncio

import click

from fleet.process import command_errors, run_until_signal
from fleet.transport.embedded import embedded_broker


@click.command()
@click.argument("port", type=click.IntRange(1, 65_535))
@command_errors
def main(port: int) -> None:
    """Run a broker on 127.0.0.1:PORT."""
    run_until_signal(_serve(port))


async def _serve(port: int) -> None:
    async with embedded_broker(port) as settings:
        click.echo(f"ready on {settings.address}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
