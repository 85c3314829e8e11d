"""The verbs of `python -m simulations bench` that measure models and methods alone."""

from pathlib import Path
from typing import Any

import click

from fleet.process import command_errors
from simulations import options
from simulations.tables import figures


@click.command()
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(10))
@options.models
@command_errors
def step(rounds: int, models: Path | None) -> None:
    """One token on the device and in the cloud, in processor time."""
    from fleet.models.bundle import reference_path
    from simulations.bench_step import bench as measure

    figures(measure(models or reference_path(), rounds=rounds))


@click.command()
@click.option("--pictures", default=4, show_default=True, type=click.IntRange(1))
@click.option("--compiled", is_flag=True, help="Also torch.compile, which takes a minute.")
@options.models
@click.option(
    "--size",
    type=click.Choice(["B", "L", "XL"]),
    help="Instead: random weights of a LlamaGen of this size, next to the machine's memory.",
)
@command_errors
def device(pictures: int, compiled: bool, models: Path | None, size: str | None) -> None:
    """The agent's draft loop, next to bare onnxruntime, int8 and torch."""
    if size:
        from simulations.real_size.device import bench as measure_large

        figures(measure_large(size, pictures=pictures))
        return
    from fleet.models.bundle import reference_path
    from simulations.bench_device import bench as measure

    figures(measure(models or reference_path(), pictures=pictures, compiled=compiled))


@click.command()
@click.option("--tokens", type=click.IntRange(2), help="Of a picture. Default: all.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option(
    "--pictures",
    multiple=True,
    type=click.IntRange(1),
    default=[1, 32],
    show_default=True,
    help="At once; give it again for more rows.",
)
@options.models
@command_errors
def decoding(
    tokens: int | None, rounds: int, pictures: tuple[int, ...], models: Path | None
) -> None:
    """Pictures that the hub draws, next to transformers (optional) with the same layers."""
    from fleet.models.bundle import reference_path
    from simulations.bench_decoding import decoding as measure

    figures(measure(models or reference_path(), tokens=tokens, rounds=rounds, pictures=pictures))


@click.command()
@click.option("--pictures", default=48, show_default=True, type=click.IntRange(2))
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(1))
@options.models
@command_errors
def precision(pictures: int, rounds: int, models: Path | None) -> None:
    """What the hub's products in bf16 (`engine.precision`) cost in quality and give in speed."""
    from fleet.models.bundle import reference_path
    from simulations.bench_precision import precision as measure

    costs, speeds = measure(models or reference_path(), pictures=pictures, rounds=rounds)
    figures(costs)
    figures(speeds)


@click.command()
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(10))
@click.option("--small", is_flag=True, help="Only the size that is shipped.")
@command_errors
def head(rounds: int, small: bool) -> None:
    """A device step with and without its interval head, at 1,024 and 16,384 codes."""
    from simulations.bench_head import SIZES
    from simulations.bench_head import bench as measure

    figures(measure(SIZES[:1] if small else SIZES, rounds=rounds))


@click.command()
@click.option("--size", "sizes", multiple=True, type=click.Choice(["B", "L", "XL"]), default=["XL"])
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(1))
@command_errors
def drafter(sizes: tuple[str, ...], rounds: int) -> None:
    """A drafter of LlamaGen's width on a device: bytes and time in float32 and int8."""
    from simulations.real_size.drafter import bench as measure

    figures(measure(sizes, rounds=rounds))


@click.command("real-size")
@click.option(
    "--size", "sizes", multiple=True, type=click.Choice(["B", "L", "XL"]), default=["B", "L", "XL"]
)
@click.option("--dtype", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option(
    "--stories",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File of recorded decisions.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Training folder: draw pictures first, and write STORIES anew.",
)
@click.option("--pictures", default=6, show_default=True, type=click.IntRange(1), help="To draw.")
@click.option(
    "--times",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of measured times: what it holds is not measured again, what is missing is added.",
)
@click.option(
    "--minutes",
    default=20.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="After which nothing more is measured; with --times a second run goes on.",
)
@command_errors
def real_size(stories: Path, work: Path | None, pictures: int, **how: Any) -> None:
    """Methods at LlamaGen's sizes: recorded decisions on random weights, one guided picture."""
    import time

    from simulations.real_size import bench, times
    from simulations.real_size import stories as told

    if work is not None:
        from fleet.models.bundle import reference_path
        from fleet.training.pictures import load_pictures
        from simulations.evaluation.captions import chosen_captions
        from simulations.evaluation.run import shipped_policy

        captions = chosen_captions(load_pictures(work), pictures).captions
        told.save(stories, told.record(work, shipped_policy(reference_path()), captions))
    until = time.monotonic() + 60 * how["minutes"]
    rows = bench.bench(
        told.load(stories),
        how["sizes"],
        how["dtype"],
        rounds=how["rounds"],
        times=times.Times(how["times"], until),
    )
    figures(rows)
    click.echo("\n".join(["", bench.bar(rows), bench.ASSUMPTIONS]))


@click.command()
@click.option("--pictures", default=8, show_default=True, type=click.IntRange(1), help="A rule.")
@options.models
@command_errors
def rules(pictures: int, models: Path | None) -> None:
    """Bytes of a verified token under each verification rule, in whole pictures."""
    from simulations.bench_rules import bench as measure
    from simulations.processes import ProgramError

    try:
        figures(measure(models, pictures=pictures))
    except ProgramError as error:
        click.echo(error.tail, err=True)
        raise
