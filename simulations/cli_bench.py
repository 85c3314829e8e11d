"""`python -m simulations bench`: each verb measures a part of the line on this machine."""

from pathlib import Path

import click

from fleet.errors import FleetError, InvalidInputError
from fleet.process import command_errors
from simulations import options
from simulations.cli_bench_models import (
    decoding,
    device,
    drafter,
    head,
    precision,
    real_size,
    rules,
    step,
)
from simulations.tables import figures


@click.group()
def bench() -> None:
    """Measure a part of the line on this machine."""


@bench.command()
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(10))
@click.option("--size", default=600, show_default=True, type=click.IntRange(1), help="Bytes.")
@command_errors
def transport(rounds: int, size: int) -> None:
    """Round trips over each broker, next to a bare TCP echo."""
    import asyncio

    from simulations.bench_transport import bench as measure

    figures(asyncio.run(measure(rounds=rounds, size_bytes=size)))


@bench.command()
@click.option("--count", default=5000, show_default=True, type=click.IntRange(100))
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1, 1024))
@click.option("--url", help="An empty database, which is emptied again. Default: SQLite.")
@command_errors
def records(count: int, batch: int, url: str | None) -> None:
    """Records into the database, next to the same statements by bare executemany."""
    from tempfile import TemporaryDirectory

    from simulations.bench_records import bench as measure

    with TemporaryDirectory() as folder:
        figures(measure(url or f"sqlite:///{folder}/hub.db", records=count, batch=batch))


@bench.command()
@click.option("--count", default=20, show_default=True, type=click.IntRange(0, 10_000))
@click.option("--seed", default=1, show_default=True, help="Names victims and moments.")
@click.option("--agents", default=3, show_default=True, type=click.IntRange(1, 64))
@click.option("--rate", default=20.0, show_default=True, help="Records a second of each agent.")
@click.option("--pause", default=0.0, help="Seconds for which the database stands still at last.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Kept, and gone on with when it is there. Default: a folder for a while.",
)
@command_errors
def kills(count: int, seed: int, agents: int, rate: float, pause: float, out: Path | None) -> None:
    """Random SIGKILLs of agents, hub, broker and database: records lost, records doubled.

    Needs mosquitto and PostgreSQL. Ends with exit code 1 if any record was lost or doubled.
    """
    from tempfile import TemporaryDirectory

    from simulations.kills.bench import Order
    from simulations.kills.bench import bench as measure
    from simulations.processes import ProgramError

    if not 0 < rate <= 1000 or not 0 <= pause <= 3600:
        raise InvalidInputError("--rate is above 0, at most 1000; --pause 0 to 3600 seconds")
    with TemporaryDirectory(prefix="ciar-kills-") as folder:
        order = Order(out or Path(folder), count, seed, agents, rate, pause)
        try:
            found = measure(order, click.echo)
        except ProgramError as error:
            click.echo(error.tail, err=True)
            raise
    figures(found)
    if any(each.lost or each.doubled for each in found):
        raise FleetError("records were lost or doubled: the logs and spools are in --out")


@bench.command()
@click.option("--count", default=20, show_default=True, type=click.IntRange(0, 10_000))
@click.option("--seed", default=1, show_default=True, help="Names the moments.")
@options.models
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Of state and logs; a new folder. Default: a folder for a while.",
)
@command_errors
def deaths(count: int, seed: int, models: Path | None, out: Path | None) -> None:
    """Random SIGKILLs of an agent that draws and switches models: does it start, is all whole.

    Ends with exit code 1 if an answered picture has no record, or anything was torn.
    """
    from tempfile import TemporaryDirectory

    from fleet.logs import configure_logs
    from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, reference_path
    from simulations.kills.daemon import bench as measure
    from simulations.processes import ProgramError

    if out is not None and out.exists():
        raise InvalidInputError(f"{out} exists: name a new folder")
    configure_logs(log_format="console", level="warning")
    family = models or reference_path()
    pair = (family / DEVICE_FOLDER, family / PUBLIC_KEY)
    with TemporaryDirectory(prefix="ciar-deaths-") as folder:
        try:
            found = measure(pair, count, seed, out or Path(folder), click.echo)
        except ProgramError as error:
            click.echo(error.tail, err=True)
            raise
    figures([found])
    if found.lost or found.torn:
        raise FleetError("something was lost or torn: the logs and spools are in --out")


@bench.command()
@click.option("--nodes", default=100, show_default=True, type=click.IntRange(1))
@click.option("--pictures", default=10_000_000, show_default=True, help="In the sums.")
@click.option("--rows", default=1_000_000, show_default=True, help="Pictures with a row.")
@click.option("--days", default=28, show_default=True, type=click.IntRange(9))
@click.option("--repeats", default=20, show_default=True, type=click.IntRange(1))
@click.option("--url", help="An empty database, which stays full. Default: SQLite, for a while.")
@command_errors
def queries(nodes: int, pictures: int, rows: int, days: int, repeats: int, url: str | None) -> None:
    """Every documented question, over the sums of many pictures and a million rows."""
    from tempfile import TemporaryDirectory

    from simulations.bench_queries import Fleet
    from simulations.bench_queries import bench as measure

    with TemporaryDirectory() as folder:
        fleet = Fleet(nodes, pictures, rows, days)
        figures(measure(url or f"sqlite:///{folder}/hub.db", fleet, repeats=repeats))


@bench.command()
@click.option("--pictures", default=4, show_default=True, type=click.IntRange(1), help="Of a row.")
@click.option(
    "--rtt",
    "rtts",
    multiple=True,
    type=click.IntRange(0, 5000),
    help="Round trips in milliseconds. Default: 5, 20, 50, 100.",
)
@click.option("--shipped/--stand-ins", default=False, help="The shipped pair, or pairs by design.")
@options.models
@command_errors
def agent(pictures: int, rtts: tuple[int, ...], shipped: bool, models: Path | None) -> None:
    """Pictures of an agent that drafts ahead, next to one that stops and waits."""
    import asyncio

    from fleet.models.bundle import reference_path
    from simulations.bench_agent import CASES, ROUND_TRIPS_MS, SHIPPED
    from simulations.bench_agent import bench as measure

    work = measure(
        models or reference_path(),
        pictures=pictures,
        cases=SHIPPED if shipped else CASES,
        rtts=rtts or ROUND_TRIPS_MS,
    )
    figures(asyncio.run(work))


@bench.command()
@click.option("--nodes", default=200, show_default=True, type=click.IntRange(2))
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(1))
@command_errors
def rounds(nodes: int, rounds: int) -> None:
    """Federated rounds of many nodes in one process: time, memory and bytes."""
    from simulations.bench_rounds import bench as measure

    figures(measure(nodes=nodes, rounds=rounds))


@bench.command()
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(2))
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1))
@click.option("--wait", "wait_s", default=300.0, show_default=True, help="For a phase at most.")
@click.option("--alone", is_flag=True, help="Over MQTT only: for more nodes than SuperNodes fit.")
@command_errors
def flower(nodes: int, rounds: int, wait_s: float, *, alone: bool) -> None:
    """Rounds over MQTT next to the same on Flower's SuperLink with SuperNodes."""
    from fleet.logs import configure_logs
    from simulations.bench_flower import bench as measure

    configure_logs(log_format="console", level="warning")
    figures(measure(nodes=nodes, rounds=rounds, wait_s=wait_s, alone=alone))


@bench.command()
@click.option("--seconds", default=20.0, show_default=True, help="Of each measurement.")
@click.option("--devices", default=64, show_default=True, help="Replayed at full speed.")
@click.option("--sessions", default="1,32,128,512", show_default=True, help="At a device's pace.")
@click.option("--fleets", default="1,8,32,128", show_default=True, help="Devices, whole pictures.")
@click.option("--minutes", default=0.0, show_default=True, help="Of the memory test; 0: none.")
@options.models
@command_errors
def engine(
    seconds: float, devices: int, sessions: str, fleets: str, minutes: float, models: Path | None
) -> None:
    """The hub's engine under recorded requests; docs/limits.md reads the figures."""
    import asyncio

    from fleet.models.bundle import reference_path
    from simulations import bench_engine, bench_forward
    from simulations.load.recording import record

    family = models or reference_path()
    figures(bench_forward.forwards(family, rounds=20))
    figures(bench_forward.paddings(family, rounds=20))
    scripts = asyncio.run(record(family))
    work = {"seconds": seconds}
    figures([asyncio.run(bench_engine.throughput(family, scripts, devices=devices, **work))])
    if sessions:
        counts = _numbers(sessions)
        figures(asyncio.run(bench_engine.latencies(family, scripts, sessions=counts, **work)))
    if fleets:
        counts = _numbers(fleets)
        figures(asyncio.run(bench_engine.pictures(family, scripts, devices=counts, **work)))
    if minutes:
        figures(asyncio.run(bench_engine.memory(family, scripts, sessions=128, minutes=minutes)))


def _numbers(text: str) -> list[int]:
    from fleet.errors import InvalidInputError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInputError(f"{text!r} is not a list such as 1,32,128") from error


@bench.command()
@click.option("--devices", default="10,100,1000", show_default=True, help="Fleets.")
@click.option("--seconds", default=60.0, show_default=True, help="Virtual, of each.")
@command_errors
def world(devices: str, seconds: float) -> None:
    """Virtual seconds in a second, by the size of the fleet."""
    from simulations.bench_world import bench as measure
    from simulations.profile import load_profile

    figures(measure(load_profile(), fleets=_numbers(devices), seconds=seconds))


@bench.command()
@click.option("--devices", default=4, show_default=True, type=click.IntRange(1, 64))
@click.option("--seconds", default=30.0, show_default=True, help="Of pictures, on both clocks.")
@click.option("--programs", is_flag=True, help="Real models, broker and programs; no stand-ins.")
@command_errors
def clocks(devices: int, seconds: float, programs: bool) -> None:
    """The virtual clock next to this machine's own, on one scenario, and whether they agree."""
    from simulations import bench_clocks
    from simulations.profile import load_profile

    if programs:
        found = bench_clocks.bench_programs(devices=devices, seconds=seconds)
    else:
        found = bench_clocks.bench(load_profile(), devices=devices, seconds=seconds)
    figures(found)


@bench.command("all")
@click.option("--only", help="Some of them, joined by commas.")
@click.option("--quick", is_flag=True, help="Small settings: half an hour in all, not a day.")
@click.option(
    "--repeats",
    default=1,
    show_default=True,
    type=click.IntRange(1, 99),
    help="Of each; the figures then have their spread.",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also add the figures to this log, such as simulations/LOG.md.",
)
@command_errors
def all_benches(only: str | None, repeats: int, log: Path | None, *, quick: bool) -> None:
    """Every bench, one after the other, with the facts of the machine."""
    from simulations.bench_all import BENCHES, Measured, add_to, entry, measure

    names = only.split(",") if only else list(BENCHES)

    def tell(each: Measured) -> None:
        click.echo(f"{each.command} ({each.seconds:.0f} s)\n{each.output}\n")

    found = measure(names, tell, repeats=repeats, quick=quick)
    if log is not None:
        add_to(log, entry(found, repeats))
        click.echo(f"added to {log}")


for verb in (decoding, step, precision, device, head, drafter, real_size, rules):
    bench.add_command(verb)
