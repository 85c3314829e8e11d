"""`python -m simulations scenarios`, `run`, `search`: made-up fleets, and what they prove."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from fleet.errors import FleetError, OutputError
from fleet.process import command_errors
from simulations import options
from simulations.broker import KINDS, Kind

_MOST_TROUBLE = 100

T = TypeVar("T")


@click.command()
@command_errors
def scenarios() -> None:
    """List the scenarios that ship; docs/simulation.md says how to write one."""
    from rich.console import Console
    from rich.table import Table

    from simulations.scenarios.files import load, shipped

    table = Table("name", "devices", "minutes", "about", box=None, header_style="bold")
    for name in shipped():
        found = load(name)
        table.add_row(name, str(found.devices), f"{found.seconds / 60:g}", found.about)
    Console().print(table)


@click.command()
@click.argument("name")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0))
@click.option(
    "--clock",
    default="virtual",
    show_default=True,
    type=click.Choice(["virtual", "real"]),
    help="Stand-ins on a clock that jumps, or real broker, hub and agents, which take their time.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the results. Default: named after scenario and seed.",
)
@click.option(
    "--trouble",
    default=0,
    show_default=True,
    type=click.IntRange(0, _MOST_TROUBLE),
    help="Faults drawn by the seed, beside the scenario's own.",
)
@options.profile
@click.option(
    "--processes",
    default=2,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Real clock: among which the agents are shared.",
)
@click.option(
    "--broker",
    default="trial",
    show_default=True,
    type=click.Choice(KINDS),
    help="Real clock: the broker.",
)
@command_errors
def run(  # noqa: PLR0913  # one parameter an option
    name: str,
    seed: int,
    clock: str,
    out: Path | None,
    trouble: int,
    profile: Path | None,
    processes: int,
    broker: Kind,
) -> None:
    """Run the scenario NAME, or the one in the file NAME, and report what came of it."""
    from rich.console import Console

    from simulations import runs
    from simulations.profile import load_profile
    from simulations.real.run import RealOrder
    from simulations.report.page import write_report
    from simulations.scenarios.chaos import with_trouble
    from simulations.scenarios.files import load
    from simulations.screen import progress
    from simulations.world.world import Order

    scenario = with_trouble(load(name), seed, trouble)
    folder = out or Path(f"{scenario.name}-{seed}")
    with progress(Console(highlight=False, soft_wrap=True)) as show:
        if clock == "virtual":
            order = Order(scenario, seed, folder, load_profile(profile))
            found = runs.run(order, show)
        else:
            real = RealOrder(scenario, seed, folder, processes, broker=broker)
            found = _with_tail(lambda: runs.run_real(real, show))
    click.echo(write_report(folder, found), nl=False)
    click.echo(f"{folder / 'index.html'}   the same with figures")
    click.echo(f"CLOUD_HUB_STORE__URL=sqlite:///{folder / 'hub.db'} cloud_hub query devices")
    if found.violations:
        raise FleetError(f"{len(found.violations)} laws are broken: see {folder / 'report.txt'}")


def _with_tail(work: Callable[[], T]) -> T:
    """Shows the end of a program's log where it failed."""
    from simulations.processes import ProgramError

    try:
        return work()
    except ProgramError as error:
        click.echo(error.tail, err=True)
        raise


@click.command()
@click.option("--seeds", default=200, show_default=True, type=click.IntRange(1))
@click.option("--first", default=0, show_default=True, type=click.IntRange(0))
@click.option("--scenario", "name", default="search", show_default=True)
@click.option(
    "--trouble", default=3, show_default=True, type=click.IntRange(0, _MOST_TROUBLE), help="Faults."
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 256))
@command_errors
def search(seeds: int, first: int, name: str, trouble: int, processes: int) -> None:
    """Try many seeds, each with faults of its own, and print those that break a law."""
    from simulations.scenarios.files import load
    from simulations.search import search as search_seeds

    scenario, failed, pictures = load(name), 0, 0
    wanted = range(first, first + seeds)
    for tried in search_seeds(scenario, wanted, trouble=trouble, processes=processes):
        pictures += tried.pictures
        if tried.broken:
            failed += 1
            click.echo(f"seed {tried.seed}: {tried.broken[0]}")
            again = f"--seed {tried.seed} --trouble {trouble} --out seed-{tried.seed}"
            click.echo(f"  python -m simulations run {name} {again}")
    click.echo(f"{seeds} seeds, {pictures} pictures, {failed} seeds that break a law")
    if failed:
        raise FleetError(f"{failed} of {seeds} seeds break a law; the commands above repeat them")


@click.command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON.")
@click.option("--rounds", default=100, show_default=True, type=click.IntRange(5))
@click.option("--pictures", default=12, show_default=True, type=click.IntRange(1), help="A style.")
@options.models
@command_errors
def profile(out: Path, rounds: int, pictures: int, models: Path | None) -> None:
    """Measure what models cost here and how they get on, for `run --profile`."""
    from fleet.models.bundle import reference_path
    from simulations.profile_measure import measure

    if not out.parent.is_dir():  # before minutes of measuring
        raise OutputError(f"{out} cannot be written: there is no folder {out.parent}")
    found = measure(models or reference_path(), rounds=rounds, pictures=pictures)
    try:
        out.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error
    click.echo(out.read_text(encoding="utf-8"), nl=False)


@click.command()
@click.option("--per-minute", default=1.0, show_default=True, help="Pictures of a device.")
@click.option("--p95", default=0.2, show_default=True, help="Seconds of a request at the hub.")
@click.option("--speed", default=1.0, show_default=True, help="Of a worker, to the profile's.")
@options.profile
@click.option(
    "--check",
    type=click.IntRange(1, 10_000),
    help="Also hold the queue against a world with so many devices on one worker.",
)
@command_errors
def capacity(
    per_minute: float, p95: float, speed: float, profile: Path | None, check: int | None
) -> None:
    """How many devices a worker serves, and how many workers a fleet takes."""
    from simulations.planning import checked, plan
    from simulations.profile import load_profile
    from simulations.tables import figures

    found = plan(load_profile(profile), per_minute=per_minute, p95_s=p95, speed=speed)
    demand = found.asked.demand
    click.echo(
        f"A picture asks for {demand.requests:.1f} requests, {demand.tokens:.0f} tokens in forwards"
        f" and {found.asked.picture_bytes / 1e3:.1f} kB. One worker at its limit:"
    )
    figures([found.best])
    click.echo("Fleets, and the workers they take:")
    figures(found.fleets)
    if check is not None:
        click.echo("The queue next to a world of two minutes:")
        figures([checked(load_profile(profile), check, seconds=120.0, per_minute=per_minute)])
