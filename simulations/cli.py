"""The command line of the simulations: a demonstration, an evaluation, measurements."""

from pathlib import Path

import click

from fleet.process import command_errors


@click.group()
def main() -> None:
    """See the fleet at work, and measure it."""


@main.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo"),
    show_default=True,
    help="Folder of the results; what an earlier demo left there is replaced.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder with device/, cloud/ and signing.pub. Default: the family that is shipped.",
)
@command_errors
def demo(out: Path, models: Path | None) -> None:
    """Start a hub and three devices, make twelve pictures, and lay them out to look at."""
    from simulations.demonstration.run import run_demo

    run_demo(out, models)
