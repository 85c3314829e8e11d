"""`python -m simulations drift`: what a drift costs a fleet, and what rounds bring back."""

from pathlib import Path

import click

from fleet.process import command_errors
from simulations import options


@click.command()
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE...]")
@options.work
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Results; a run that was stopped goes on from what is there.",
)
@options.models
@click.option(
    "--cloud",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Checkpoint of the new cloud model. Default: the family's own, trained further.",
)
@click.option(
    "--arm", "arms", multiple=True, type=click.Choice(["cloud", "captions"]), help="Only this one."
)
@click.option("--devices", default=20, show_default=True, type=click.IntRange(2))
@click.option(
    "--pictures",
    default=30,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Of a device, to learn from.",
)
@click.option(
    "--measured",
    default=6,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Pictures of a device under each condition.",
)
@click.option(
    "--further",
    default=200,
    show_default=True,
    type=click.IntRange(1),
    help="Steps by which the cloud is trained further.",
)
@click.option(
    "--peak",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Of that training's rates, over the cloud's own.",
)
@click.option(
    "--colour",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of their colour that its pictures keep; 1: the pictures as they are.",
)
@click.option("--seed", default=1, show_default=True)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page; its .png and .parquet lie beside it. Default: OUT/drift.md.",
)
@command_errors
def drift(  # noqa: PLR0913  # one parameter an option
    work: Path,
    out: Path,
    models: Path | None,
    cloud: Path | None,
    arms: tuple[str, ...],
    changes: tuple[str, ...],
    seed: int,
    processes: int,
    page: Path | None,
    **size: int | float,
) -> None:
    """Let the cloud model, and captions too, drift away from a fleet, and let rounds follow.

    Reports acceptance, at a fixed threshold, before the drift, after it without rounds, after
    rounds by Inter-DRO and by plain distillation, and after training on all samples in one place.
    A KEY is one of the plan of rounds (docs/rounds.md), as in rounds=5 steps=60.
    """
    import sys
    from typing import Any, cast

    from fleet.federation.plan import Plan, texts_of
    from fleet.models.bundle import reference_path
    from simulations.drift.order import ARMS, Arm, Order, Size
    from simulations.drift.publish import publish
    from simulations.drift.released import unpacked
    from simulations.drift.study import Study
    from simulations.evaluation.page import command
    from simulations.evaluation.run import shipped_policy

    family = models or reference_path()
    order = Order(
        work=work,
        out=out,
        models=unpacked(family, work, out),
        cloud=cloud,
        shipped=shipped_policy(family),
        plan=Plan.from_texts({"rounds": "5", **texts_of(changes)}),
        size=Size(**cast(Any, size)),
        arms=cast("tuple[Arm, ...]", arms) or ARMS,
        seed=seed,
        processes=processes,
    )
    study = Study(order)
    rows = study.run()
    written = page or out / "drift.md"
    click.echo(publish(study, rows, written, command(sys.argv[1:])))
    click.echo(f"{written}, with its .png and .parquet beside it")
