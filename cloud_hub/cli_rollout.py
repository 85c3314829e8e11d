"""`cloud_hub rollout`: a model version to a canary share first; its figures decide."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud_hub.cli_query import config_option
from cloud_hub.cli_rounds import open_database, rounds_settings
from fleet.errors import InvalidInputError
from fleet.process import command_errors, run_until_signal

if TYPE_CHECKING:
    from cloud_hub.settings import HubSettings
    from cloud_hub.store.database import Database

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def rollout() -> None:
    """Bring a model version to devices: to a share first, to all or back by what these do."""


@rollout.command()
@click.argument("version")
@click.option("--source", help="URL of the models, as in http://hub:8080/models.")
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), help="Of the devices, first.")
@click.option("--least", type=click.IntRange(1), help="Tokens judged, and checked, before all.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(0, min_open=True), help="Seconds for these."
)
@config_option
@command_errors
def start(
    version: str,
    source: str | None,
    share: float | None,
    least: int | None,
    wait_s: float | None,
    config: Path | None,
) -> None:
    """Let a share of the devices run VERSION; widen it, or take it back, by what they do.

    It is taken back as soon as corrections or false accepts are surely more than on the other
    devices, and widened once enough tokens were seen without that. What is not given are the
    settings `rollout.source`, `.share`, `.least` and `.wait_s`. After Ctrl-C a hub that serves
    goes on with it.
    """
    from cloud_hub.rollout.by_itself import new_name
    from cloud_hub.rollout.controller import Wish, begin

    settings = rounds_settings(config)
    defaults = settings.rollout
    if (where := source or defaults.source) is None:
        raise InvalidInputError("where do devices fetch it? give --source, or set rollout.source")
    if not where.startswith(("http://", "https://")):
        raise InvalidInputError(f"{where!r} is no http or https URL")
    name = new_name(datetime.now(UTC))
    wish = Wish(
        version,
        where,
        share or defaults.share,
        least or defaults.least,
        wait_s or defaults.wait_s,
    )
    with open_database(config) as database:
        _conduct(settings, database, name, lambda: begin(database, name, wish, "by hand"))


@rollout.command()
@click.argument("rollout_id", metavar="ROLLOUT")
@config_option
@command_errors
def resume(rollout_id: str, config: Path | None) -> None:
    """Go on with a rollout that was stopped, or that nobody conducts."""
    from cloud_hub.rollout.controller import reopen
    from cloud_hub.store import rollouts as store

    with open_database(config) as database:
        with database.read() as connection:
            store.rollout_of(connection, rollout_id, datetime.now(UTC))
        settings = rounds_settings(config)
        _conduct(settings, database, rollout_id, lambda: reopen(database, rollout_id))


@rollout.command()
@click.argument("rollout_id", metavar="ROLLOUT")
@config_option
@command_errors
def stop(rollout_id: str, config: Path | None) -> None:
    """Stop a rollout where it stands: who runs the version keeps it."""
    from cloud_hub.rollout.controller import ask_to_stop

    with open_database(config) as database:
        found = ask_to_stop(database, rollout_id)
    when = "stops within some seconds" if found.is_open else "is stopped"
    click.echo(f"{rollout_id} {when}; `cloud_hub rollout resume {rollout_id}` goes on")


@rollout.command("list")
@_json
@config_option
@command_errors
def list_rollouts(as_json: bool, config: Path | None) -> None:
    """One line a rollout, the newest first."""
    from cloud_hub.rollout import telling
    from cloud_hub.store import rollouts as store

    with open_database(config) as database, database.read() as connection:
        found = store.rollouts(connection, datetime.now(UTC))
    if as_json:
        click.echo(json.dumps([telling.fields_of(each) for each in found], indent=2))
    else:
        click.echo("\n".join(telling.lines(found)))


@rollout.command()
@click.argument("rollout_id", metavar="ROLLOUT")
@_json
@config_option
@command_errors
def show(rollout_id: str, as_json: bool, config: Path | None) -> None:
    """A rollout: what is awaited and until when, and where each node stands."""
    with open_database(config) as database:
        _show(database, rollout_id, as_json=as_json)


def _show(database: "Database", rollout_id: str, *, as_json: bool = False) -> None:
    from cloud_hub.rollout import telling
    from cloud_hub.rollout.controller import judge
    from cloud_hub.store import rollouts as store

    with database.read() as connection:
        found = store.rollout_of(connection, rollout_id, datetime.now(UTC))
        nodes = store.nodes_of(connection, rollout_id)
    if as_json:
        steps = {node: telling.step_fields(step) for node, step in nodes.items()}
        click.echo(json.dumps({**telling.fields_of(found), "nodes": steps}, indent=2))
        return
    awaited = judge(database, found).why if found.state == "running" else ""
    click.echo("\n".join(telling.page(found, nodes, awaited)))


def _conduct(
    settings: "HubSettings", database: "Database", rollout_id: str, begin: Callable[[], object]
) -> None:
    """Conducts a rollout, and says how it went; it begins only where there is a broker."""
    from cloud_hub.rollout.controller import take_up
    from fleet.ids import new_id
    from fleet.transport.mqtt import connect

    async def work() -> None:
        client = f"rollout-{new_id()[:8]}"
        async with connect(settings.broker, client_id=client, will=None) as transport:
            begin()
            click.echo(f"rollout {rollout_id}; Ctrl-C leaves it to a hub that serves")
            await take_up(transport, database, rollout_id, click.echo)

    run_until_signal(work())
    _show(database, rollout_id)
