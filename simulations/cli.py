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


_SCORES = ("uncertainty", "rejection_bound", "entropy", "one_minus_max", "spread")


@main.command()
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    required=True,
    help="Training folder: checkpoints, captions and pictures.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Results."
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Exported family whose policy is compared. Default: the family that is shipped.",
)
@click.option("--pictures", default=2000, show_default=True, help="Of cloud and device alone.")
@click.option("--others", default=500, show_default=True, help="Of each method in between.")
@click.option("--searched", default=200, show_default=True, help="Of each sampling rule tried.")
@click.option(
    "--score", "scores", multiple=True, type=click.Choice(_SCORES), help="Also at equal calls."
)
@click.option("--processes", default=2, show_default=True)
@click.option("--threads", default=1, show_default=True, help="Of each process.")
@click.option(
    "--stage",
    type=click.Choice(["real", "search", "study", "all"]),
    default="all",
    show_default=True,
    help="What depends on the data only; the choice of sampling rules; the comparison.",
)
@command_errors
def evaluate(  # noqa: PLR0913  # one parameter an option
    work: Path,
    out: Path,
    models: Path | None,
    pictures: int,
    others: int,
    searched: int,
    scores: tuple[str, ...],
    processes: int,
    threads: int,
    stage: str,
) -> None:
    """Compare cloud-only, device-only, CIAR and random calls with real pictures."""
    from typing import cast

    from fleet.models.bundle import reference_path
    from fleet.prediction import ScoreName
    from simulations.evaluation.run import Order, Stage
    from simulations.evaluation.run import evaluate as run

    order = Order(
        work=work,
        out=out,
        models=models or reference_path(),
        pictures=pictures,
        others=others,
        searched=searched,
        scores=cast(tuple[ScoreName, ...], scores),
        processes=processes,
        threads=threads,
    )
    run(order, cast(Stage, stage))
