"""The command line of a device: run the agent, ask it for a picture, look at it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from fleet.process import command_errors, run_until_signal

if TYPE_CHECKING:
    from edge_agent.answer import Made
    from edge_agent.maker import Wish
    from edge_agent.screen import Bar
    from edge_agent.settings import AgentSettings, WithoutCloud
    from edge_agent.station import Station
    from fleet.models.bundle import Manifest
    from fleet.transport.base import Transport

RECEIPT_S = 2.0  # how long a picture made without a daemon waits for its record's receipt
OTHER_S = 10.0  # how long it waits for another one on the same state folder

_config = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file (TOML).",
)


@click.group()
@click.version_option(package_name="ciar-fleet")
def main() -> None:
    """A device that makes pictures from text, together with the cloud or alone."""


@main.command()
@_config
@command_errors
def run(config: Path | None) -> None:
    """Connect, make pictures for callers on this machine, report, until told to stop."""
    from edge_agent.app import load_device
    from edge_agent.app import run as run_agent
    from edge_agent.station import open_station

    settings = _settings(config)
    with open_station(settings.state_path, settings.node.id, patience_s=0) as station:
        device = load_device(settings, trains=True)
        click.echo(
            f"{station.node} · bundle {device.manifest.family} {device.manifest.device_version}"
            f" · broker {settings.broker.address}"
        )

        async def work() -> None:
            async with _link(settings, station, device.manifest) as transport:
                await run_agent(settings, station, device, transport, click.echo)

        run_until_signal(work())
        click.echo("stopped")


@main.command()
@click.argument("caption")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="PNG file to write. Default: named after the caption, here.",
)
@click.option("--seed", type=int, help="Same seed, same picture. Default: a random one.")
@click.option(
    "--policy",
    metavar="NAME",
    help="Which tokens the cloud is asked about: ciar (the bundle's policy), verify-all,"
    " device-only, random or the name of a score; add +dynamic, +runN or +rows, as in"
    " spread+run12. Default: the agent's setting.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="For this picture, waiting for others included. Default: the agent's setting.",
)
@click.option(
    "--without-cloud",
    type=click.Choice(["complete", "wait", "repair", "fail"]),
    help="What to do when the cloud cannot help in time. Default: the agent's setting.",
)
@click.option(
    "--scale", type=click.IntRange(1, 32), default=4, show_default=True, help="Enlargement."
)
@click.option("--pixels", is_flag=True, help="Enlarge without smoothing.")
@click.option("--json", "as_json", is_flag=True, help="Say what happened as JSON.")
@_config
@command_errors
def generate(  # noqa: PLR0913  # one parameter an option
    caption: str,
    output: Path | None,
    seed: int | None,
    policy: str | None,
    deadline: float | None,
    without_cloud: str | None,
    scale: int,
    pixels: bool,
    as_json: bool,
    config: Path | None,
) -> None:
    """Make a picture of CAPTION, for example "google: red heart"."""
    from edge_agent.image_file import check_writable, default_name, write_png
    from edge_agent.maker import Wish
    from edge_agent.screen import progress_bar, summary

    settings = _settings(config, quiet=True)
    path = output or default_name(caption)
    check_writable(path)
    wish = Wish(
        caption,
        seed,
        policy,
        deadline,
        cast("WithoutCloud | None", without_cloud),
    )
    with progress_bar(caption, shown=not as_json) as bar:
        made = _make(settings, replace(wish, previews=bar.shows_pictures), bar)
    write_png(path, made.image, scale, "pixels" if pixels else "smooth")
    if as_json:
        click.echo(made.model_dump_json(exclude={"pixels"}, indent=2))
        return
    click.echo(summary(made, str(path)))
    for note in made.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)


@main.command()
@click.argument("generation_id", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="PNG file to write. Default: named after the caption, here.",
)
@click.option(
    "--scale", type=click.IntRange(1, 32), default=4, show_default=True, help="Enlargement."
)
@_config
@command_errors
def pictures(
    generation_id: str | None, output: Path | None, scale: int, config: Path | None
) -> None:
    """List pictures that the cloud corrects later, or fetch the newest version of one."""
    from edge_agent.client import EdgeClient
    from edge_agent.image_file import check_writable, default_name, write_png
    from edge_agent.screen import shelf_lines, summary

    client = EdgeClient(_settings(config).state_path)
    if generation_id is None:
        click.echo(shelf_lines(client.pictures()))
        return
    made = client.picture(generation_id)
    path = output or default_name(made.caption)
    check_writable(path)
    write_png(path, made.image, scale)
    click.echo(summary(made, str(path)))
    if not made.repairs:
        click.secho("note: this version is not corrected yet", fg="yellow", err=True)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@_config
@command_errors
def status(as_json: bool, config: Path | None) -> None:
    """Show what the running agent is and sees, and what to do about what is down."""
    import json

    from edge_agent.client import EdgeClient
    from edge_agent.screen import status_lines

    found = EdgeClient(_settings(config).state_path).status()
    click.echo(json.dumps(found, indent=2) if as_json else status_lines(found))


@main.command()
@_config
@command_errors
def doctor(config: Path | None) -> None:
    """Look at rights, disk, clock, bundle, DNS, port and TLS; say what to do."""
    from edge_agent.doctor import examine

    code = 0
    for finding in examine(_settings(config)):
        click.echo(f"{finding.verdict:8}  {finding.subject:6}  {finding.saw}")
        if finding.to_do:
            click.secho(f"{'':18}to do: {finding.to_do}", fg="yellow")
        code = code or finding.exit_code
    raise SystemExit(code)


@main.command()
@_config
@command_errors
def settings(config: Path | None) -> None:
    """Print the settings in force as JSON, passwords masked."""
    from fleet.settings import show_settings

    click.echo(show_settings(_settings(config)))


# ── What the verbs share ──────────────────────────────────────────────────────────────────


def _settings(config: Path | None, *, quiet: bool = False) -> "AgentSettings":
    """The settings in force; a quiet verb tells its own notes, so it logs errors only."""
    from edge_agent.settings import AgentSettings
    from fleet.logs import configure_logs
    from fleet.settings import load_settings

    found = load_settings(AgentSettings, config)
    level = "error" if quiet and "level" not in found.log.model_fields_set else found.log.level
    configure_logs(log_format=found.log.format, level=level)
    return found


def _make(settings: "AgentSettings", wish: "Wish", bar: "Bar") -> "Made":
    """The picture, from the running agent or, when there is none, from this process."""
    from edge_agent.client import EdgeClient, NoAgentError

    try:
        return EdgeClient(settings.state_path).generate(
            wish.caption,
            seed=wish.seed,
            policy=wish.policy,
            deadline_s=wish.deadline_s,
            without_cloud=wish.without_cloud,
            on_step=bar,
            on_preview=bar.glimpse if bar.shows_pictures else None,
        )
    except NoAgentError as error:
        if (settings.state_path / "api.json").exists():
            click.secho(f"note: {error}; this picture is made without it", fg="yellow", err=True)
        return _make_alone(settings, wish, bar)


def _make_alone(settings: "AgentSettings", wish: "Wish", bar: "Bar") -> "Made":
    """Becomes an agent for one picture."""
    from edge_agent.app import agent, load_device
    from edge_agent.station import open_station

    made: list[Made] = []
    with open_station(settings.state_path, settings.node.id, patience_s=OTHER_S) as station:
        device = load_device(settings)

        async def work() -> None:
            async with (
                _link(settings, station, device.manifest) as transport,
                agent(settings, station, device, transport, lambda _: None) as running,
            ):
                made.append(await running.make(wish, bar))
                if transport.is_connected:
                    await running.delivery.flush(RECEIPT_S)

        run_until_signal(work())
    if not made:
        raise click.Abort
    return made[0]


@asynccontextmanager
async def _link(
    settings: "AgentSettings", station: "Station", manifest: "Manifest"
) -> AsyncIterator["Transport"]:
    """The link to the settings' broker, slowed down where the settings say so."""
    from random import Random

    from edge_agent.app import presence_of
    from fleet.transport.link import PROFILES, SimulatedLink
    from fleet.transport.mqtt import connect

    will = presence_of(station, manifest).will()
    async with connect(settings.broker, client_id=station.node, will=will, wait=False) as transport:
        if settings.simulation.link == "none":
            yield transport
            return
        profile = PROFILES[settings.simulation.link]
        async with SimulatedLink(transport, profile, Random(settings.simulation.seed)) as slow:
            yield slow
