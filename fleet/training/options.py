"""Options that several verbs of the training command share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

work = click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of pictures, checkpoints and curves.",
)
seed = click.option("--seed", type=int, default=1, show_default=True, help="Seed of the stage.")


def minutes(default: float) -> Callable[[Command], Command]:
    """Add the time of a stage that goes by the clock."""
    text = "Time to spend; a stage that was stopped goes on with what is left of it."
    return click.option("--minutes", type=float, default=default, show_default=True, help=text)


def sampling(command: Command) -> Command:
    """Add the options of the sampling a family is released with."""
    for name, default, text in (
        ("--top-k", 0, "Codes kept; 0 keeps all."),
        ("--temperature", 0.3, "Divides the logits."),
        ("--guidance", 1.0, "Weight of the caption; 1 is none."),
    ):
        command = click.option(name, default=default, show_default=True, help=text)(command)
    return command


def disturbed(command: Command) -> Command:
    """Add the share of false histories (`fleet/training/disturb.py`)."""
    text = "Share of the pictures whose history is wrong in places."
    return click.option("--disturbed", default=0.5, show_default=True, help=text)(command)


def recipe(command: Command) -> Command:
    """Add the options that choose the losses of the device."""
    arms = click.option(
        "--arm",
        type=click.Choice(["sound", "faithful"]),
        default="sound",
        show_default=True,
        help="Radii as quantiles of the error; or Inter-DRO as published.",
    )
    robust = click.option(
        "--robust",
        type=click.Choice(["ball", "penalised", "cvar"]),
        default="ball",
        show_default=True,
        help="Form of the worst case over positions.",
    )
    return arms(robust(command))
