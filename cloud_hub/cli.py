"""The command line of the hub."""

import asyncio
import gc
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud_hub.cli_calibrate import calibrate
from cloud_hub.cli_models import models
from cloud_hub.cli_query import config_option, query
from cloud_hub.cli_rollout import rollout
from cloud_hub.cli_rounds import rounds
from fleet.process import command_errors, run_until_signal

if TYPE_CHECKING:
    from cloud_hub.app import Hub
    from cloud_hub.settings import HubSettings
    from fleet.transport.broker import BrokerSettings


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ciar-fleet")
def main() -> None:
    """The hub of a fleet of devices that make pictures from text.

    Everything but the verb is a setting: from a TOML file, or from the environment, as in
    CLOUD_HUB_BROKER__HOST=broker.example. docs/hub.md has the rest.
    """


@main.command()
@config_option
@command_errors
def serve(config: Path | None) -> None:
    """Answer devices and keep their records until stopped.

    Without any setting it starts a trial broker on 127.0.0.1:1883, keeps its database in
    ./ciar-hub and serves the models that are shipped.
    """
    run_until_signal(_serve(_settings(config)))


@main.command()
@config_option
@command_errors
def worker(config: Path | None) -> None:
    """Answer devices beside a hub that runs already, here or on another machine.

    Needs the hub's broker (broker.host; by default the trial broker on this machine) and models,
    and no database: records stay with `cloud_hub serve`.
    """
    run_until_signal(_work(_settings(config)))


@main.command()
@config_option
@command_errors
def migrate(config: Path | None) -> None:
    """Bring the database to this release's revision."""
    from cloud_hub.store import revision
    from cloud_hub.store.database import Database

    with Database(_settings(config).store_url) as database:
        click.echo(f"{database.name} stands at revision {revision.migrate(database)}")


@main.command()
@click.argument("node")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--wait", "wait_s", default=10.0, show_default=True, help="Seconds.")
@config_option
@command_errors
def configure(node: str, changes: tuple[str, ...], wait_s: float, config: Path | None) -> None:
    """Set settings of one device from afar, as in generation.policy=verify-all.

    KEY= alone gives the device its own value back. The broker keeps what is wanted: a device
    that is away takes it when it comes back.
    """
    import asyncio

    from cloud_hub.desired import configure as set_settings
    from cloud_hub.desired import parse
    from fleet.errors import InvalidInputError
    from fleet.ids import new_id, node_id
    from fleet.transport.mqtt import connect

    settings, wanted = _settings(config), parse(changes)

    async def work() -> None:
        client = f"operator-{new_id()[:8]}"
        async with connect(settings.broker, client_id=client, will=None) as transport:
            told = await set_settings(transport, node_id(node), wanted, wait_s)
        click.echo(f"{node} follows version {told.version}")
        for key, value in sorted(told.settings.items()):
            click.echo(f"{key} = {value}")
        for key, reason in told.refused.items():
            click.secho(f"refused: {key} {reason}", fg="yellow", err=True)
        if any(key in told.refused for key in wanted):
            raise InvalidInputError(f"{node} keeps its own value of what it refused")

    asyncio.run(work())


@main.command()
@config_option
@command_errors
def settings(config: Path | None) -> None:
    """Print the settings in force as JSON, passwords masked."""
    from cloud_hub.settings import HubSettings
    from fleet.settings import load_settings, show_settings

    click.echo(show_settings(load_settings(HubSettings, config)))


main.add_command(query)
main.add_command(models)
main.add_command(calibrate)
main.add_command(rounds)
main.add_command(rollout)


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@config_option
@command_errors
def backup(file: Path, config: Path | None) -> None:
    """Copy the database to a file; the hub may go on working."""
    from cloud_hub.store import backup as copies

    copies.backup(_settings(config).store_url, file)
    click.echo(f"{file} holds the database; `cloud_hub restore` makes a new one of it")


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@config_option
@command_errors
def restore(file: Path, config: Path | None) -> None:
    """Make the database, which must be empty, what a backup holds, and bring it up to date."""
    from cloud_hub.store import backup as copies
    from cloud_hub.store import revision
    from cloud_hub.store.database import Database

    url = _settings(config).store_url
    copies.restore(url, file)
    with Database(url) as database:
        click.echo(f"{database.name} stands at revision {revision.migrate(database)}")


@main.command()
@click.argument("node")
@click.confirmation_option("--yes", prompt="Every row of this node goes, its sums too. Go on?")
@config_option
@command_errors
def purge(node: str, config: Path | None) -> None:
    """Forget a node: pictures, checks, sums, states. Exports are files of yours and stay."""
    from datetime import UTC, datetime

    from cloud_hub.store import care, revision
    from cloud_hub.store.database import Database

    with Database(_settings(config).store_url, must_exist=True) as database:
        revision.require_current(database)
        gone = care.purge(database, node, datetime.now(UTC))
    click.echo(f"{sum(gone.values())} rows are gone")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--all", "everything", is_flag=True, help="Look at every hour again.")
@config_option
@command_errors
def export(folder: Path, everything: bool, config: Path | None) -> None:
    """Bring a folder of Parquet files up to the database; records may come in meanwhile."""
    from cloud_hub import export as exporting
    from cloud_hub.store import revision
    from cloud_hub.store.database import Database

    with Database(_settings(config).store_url, must_exist=True) as database:
        revision.require_current(database)
        done = exporting.export(database, folder, everything=everything)
    click.echo(f"{folder}: {done.rows} rows in {done.files} files, complete until {done.until}")


def _settings(config: Path | None) -> "HubSettings":
    from cloud_hub.settings import HubSettings
    from fleet.logs import configure_logs
    from fleet.settings import load_settings

    loaded = load_settings(HubSettings, config)
    configure_logs(log_format=loaded.log.format, level=loaded.log.level)
    return loaded


async def _serve(settings: "HubSettings") -> None:
    from contextlib import AsyncExitStack

    from cloud_hub import app
    from fleet.transport.embedded import embedded_broker

    async with AsyncExitStack() as stack:
        broker = settings.broker
        if not settings.has_broker:  # first, since a port in use is the likeliest trouble
            broker = await stack.enter_async_context(embedded_broker(settings.broker.port))
        hub = await asyncio.to_thread(app.open_hub, settings)
        stack.callback(hub.close)
        await _run(settings, hub, broker)


async def _work(settings: "HubSettings") -> None:
    from cloud_hub import app

    await _run(settings, await asyncio.to_thread(app.open_worker, settings), settings.broker)


async def _run(settings: "HubSettings", hub: "Hub", broker: "BrokerSettings") -> None:
    from cloud_hub import app
    from fleet.transport.mqtt import connect

    identity = hub.identity
    async with connect(broker, client_id=f"hub-{identity.worker}", will=identity.will) as transport:

        def ready() -> None:
            # What is loaded stays: without this the collector walks through all modules again
            # and again, a sixth of the time that a record takes.
            gc.freeze()
            for line in _introduction(hub, settings, broker.address):
                click.echo(line)

        await app.serve(settings, transport, hub, ready=ready)


def _introduction(hub: "Hub", settings: "HubSettings", address: str) -> list[str]:
    identity, database = hub.identity, hub.database
    trial = "" if settings.has_broker else " (trial broker: this machine only, no passwords)"
    memory = f"{settings.engine.cache_mib} MiB of KV cache"
    records = "left to `cloud_hub serve`" if database is None else database.name
    return [
        f"cloud hub {identity.hub_version}, worker {identity.worker}",
        f"  broker    {address}{trial}",
        f"  database  {records}",
        f"  models    {identity.family}, cloud model {identity.cloud_version}",
        f"  engine    {hub.runner.slots} pictures at a time in {memory}",
        "ready; stop with Ctrl-C",
    ]
