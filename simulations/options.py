"""Options that several verbs of the simulations share."""

from pathlib import Path

import click

work = click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="Training folder: checkpoints, captions and pictures; it is only read.",
)
models = click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder with device/, cloud/ and signing.pub. Default: the family that is shipped.",
)
profile = click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What models cost, from `profile`. Default: the one that ships.",
)
