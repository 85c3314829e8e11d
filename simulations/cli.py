"""The command line of the simulations: a demonstration, scenarios, an evaluation, measurements."""

from pathlib import Path

import click

from fleet.errors import InvalidInputError
from fleet.process import command_errors
from simulations import options
from simulations.cli_bench import bench
from simulations.cli_drift import drift
from simulations.cli_world import capacity, profile, run, scenarios, search

_PAGES_OF_THEIR_OWN = ("latency", "why", "own", "sampling")


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
@options.models
@command_errors
def demo(out: Path, models: Path | None) -> None:
    """Start a hub and three devices, make twelve pictures, and lay them out to look at."""
    from simulations.demonstration.run import run_demo
    from simulations.processes import ProgramError

    try:
        run_demo(out, models)
    except ProgramError as error:
        click.echo(error.tail, err=True)
        raise


@main.command()
@options.work
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Results."
)
@options.models
@click.option("--pictures", default=2000, show_default=True, help="Of cloud and device alone.")
@click.option("--others", default=500, show_default=True, help="Of each method in between.")
@click.option("--searched", default=200, show_default=True, help="Of each sampling rule tried.")
@click.option(
    "--seeds", default=3, show_default=True, type=click.IntRange(2), help="Groups for the spread."
)
@click.option(
    "--budget",
    type=click.FloatRange(0, 1),
    help="Share of tokens the cloud may take part in. Default: what the shipped policy takes.",
)
@click.option(
    "--methods",
    default="random,entropy",
    show_default=True,
    help="Those between cloud-only, device-only and ours, with commas; 'all' for every one.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also everything else (docs/evaluation.md), as a page with its figures beside it.",
)
@click.option(
    "--own/--no-own",
    default=True,
    show_default=True,
    help="With --page: each method also at its own best sampling, which takes longest.",
)
@click.option(
    "--fid",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --page: FID by this file, inception-2015-12-05.pt (TorchScript).",
)
@click.option(
    "--clip",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --page: CLIP score by this folder, a CLIPModel as transformers saves it.",
)
@click.option(
    "--hpsv2",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="With --page: HPSv2 by this folder, its weights as a CLIPModel.",
)
@click.option("--processes", default=2, show_default=True)
@click.option("--threads", default=1, show_default=True, help="Of each process.")
@click.option(
    "--stage",
    type=click.Choice(
        ["real", "search-device", "search-cloud", "study", "all", "clock", *_PAGES_OF_THEIR_OWN]
    ),
    default="all",
    show_default=True,
    help="What depends on the data only; a choice of sampling rules; the comparison. Beside all: "
    "the step costs of an idle machine, for pages; and with --page what a picture takes, why ours "
    "loses what it loses, each method at its own best sampling, intervals under other sampling.",
)
@command_errors
def evaluate(  # noqa: PLR0913  # one parameter an option
    work: Path,
    out: Path,
    models: Path | None,
    pictures: int,
    others: int,
    searched: int,
    seeds: int,
    budget: float | None,
    methods: str,
    page: Path | None,
    own: bool,
    fid: Path | None,
    clip: Path | None,
    hpsv2: Path | None,
    processes: int,
    threads: int,
    stage: str,
) -> None:
    """Compare cloud-only, device-only, ours and other methods with real pictures."""
    from typing import cast

    from fleet.models.bundle import reference_path
    from simulations.evaluation.catalogue import all_names
    from simulations.evaluation.order import Order
    from simulations.evaluation.run import Stage
    from simulations.evaluation.run import evaluate as run

    given = {"fid": fid, "clip": clip, "hpsv2": hpsv2}
    weights = {name: path for name, path in given.items() if path is not None}
    if stage in _PAGES_OF_THEIR_OWN and page is None:
        raise InvalidInputError(f"the stage {stage} is a page: give --page too")
    if weights and page is None:
        raise InvalidInputError(f"--{next(iter(weights))} is told on the page: give --page too")
    order = Order(
        work=work,
        out=out,
        models=models or reference_path(),
        pictures=pictures,
        others=others,
        searched=searched,
        seeds=seeds,
        budget=budget,
        methods=all_names() if methods == "all" else tuple(map(str.strip, methods.split(","))),
        page=page,
        own=own,
        processes=processes,
        threads=threads,
        weights=weights,
    )
    run(order, cast(Stage, stage))


for verb in (drift, scenarios, run, search, capacity, profile, bench):
    main.add_command(verb)
