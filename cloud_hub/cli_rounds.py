"""`cloud_hub rounds`: start, watch, stop and resume federated rounds."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud_hub.cli_query import config_option
from fleet.errors import InvalidInputError
from fleet.process import command_errors, run_until_signal

if TYPE_CHECKING:
    from cloud_hub.rounds.telling import Told
    from cloud_hub.settings import HubSettings
    from cloud_hub.store.database import Database
    from cloud_hub.store.schedule import Kind

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def rounds() -> None:
    """Train the devices' heads in federated rounds; docs/rounds.md."""


@rounds.command()
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE...]")
@click.option("--name", help="Of the run. Default: made of the date.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, file_okay=False),
    help="Device bundle whose head is trained. Default: the one beside the cloud model.",
)
@config_option
@command_errors
def start(
    changes: tuple[str, ...], name: str | None, bundle: Path | None, config: Path | None
) -> None:
    """Begin a run of rounds and conduct it here, as in `rounds start rounds=3 steps=40`.

    docs/rounds.md has every KEY. Ctrl-C stops the run; `rounds resume` goes on with it.
    """
    from cloud_hub.app import device_bundle
    from cloud_hub.rounds import running
    from fleet.federation.plan import Plan, texts_of

    settings = rounds_settings(config)
    plan = Plan.from_texts(texts_of(changes))
    named = name or running.new_name(datetime.now(UTC))
    base = device_bundle(settings.model, bundle)
    with open_database(config) as database:
        _conduct(
            settings, database, named, lambda: running.begin(database, named, plan, base, "by hand")
        )


@rounds.command()
@click.argument("run_id", metavar="RUN")
@config_option
@command_errors
def resume(run_id: str, config: Path | None) -> None:
    """Go on with a run that was stopped, or whose process died; nobody trains twice."""
    from cloud_hub.store import rounds as store

    with open_database(config) as database:
        with database.read() as connection:
            store.run_of(connection, run_id, datetime.now(UTC))
        _conduct(rounds_settings(config), database, run_id)


@rounds.command()
@click.argument("run_id", metavar="RUN")
@config_option
@command_errors
def stop(run_id: str, config: Path | None) -> None:
    """Ask whoever conducts a run to stop; it can be resumed."""
    from cloud_hub.rounds import running

    with open_database(config) as database:
        running.ask_to_stop(database, run_id)
    click.echo(f"{run_id} stops within some seconds; `cloud_hub rounds resume {run_id}` goes on")


@rounds.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Private key that signs, in PEM form (Ed25519); devices hold the public one.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, file_okay=False),
    help="Device bundle whose head was trained. Default: the one beside the cloud model.",
)
@config_option
@command_errors
def publish(run_id: str, key: Path, bundle: Path | None, config: Path | None) -> None:
    """Make the device bundle of a run, sign it, and put it into the catalog.

    Devices run it when they are told to: `cloud_hub configure NODE device.version=VERSION
    device.source=http://HUB:PORT/models` (setting models.port).
    """
    from cloud_hub.app import device_bundle
    from cloud_hub.rounds.product import publish as make

    settings = rounds_settings(config)
    base = device_bundle(settings.model, bundle)
    with open_database(config) as database:
        made = make(database, run_id, base, settings.models_path, key)
    click.echo(f"{made.version} is in {made.folder}")
    for name, value in made.facts["figures"].items():
        click.echo(f"  {name:<20}{value:.4f}")


@rounds.command("list")
@_json
@config_option
@command_errors
def list_runs(as_json: bool, config: Path | None) -> None:
    """One line a run, the newest first."""
    from cloud_hub.rounds import telling
    from cloud_hub.store import rounds as store

    now = datetime.now(UTC)
    with open_database(config) as database, database.read() as connection:
        found = store.runs(connection, now)
    if as_json:
        click.echo(json.dumps([telling.run_fields(run) for run in found], indent=2))
    else:
        for line in telling.run_lines(found):
            click.echo(line)


@rounds.command()
@click.argument("run_id", metavar="RUN")
@_json
@config_option
@command_errors
def show(run_id: str, as_json: bool, config: Path | None) -> None:
    """A run: who is awaited and until when, each round, and what became of each node."""
    from cloud_hub.rounds import telling
    from cloud_hub.store import rounds as store

    now = datetime.now(UTC)
    with open_database(config) as database, database.read() as connection:
        run, ended = store.run_of(connection, run_id, now), store.rounds_of(connection, run_id)
    if as_json:
        fields = {**telling.run_fields(run), "rounds": [telling.round_fields(r) for r in ended]}
        click.echo(json.dumps(fields, indent=2))
        return
    for line in telling.run_page(run, ended, now):
        click.echo(line)


@rounds.group()
def schedule() -> None:
    """Let `cloud_hub serve` begin runs by itself."""


@schedule.command()
@click.argument("name")
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE...]")
@click.option(
    "--at",
    "timing",
    default="*/15 * * * *",
    show_default=True,
    help="Crontab line in UTC: when to begin, or to look at the condition.",
)
@click.option(
    "--on",
    "kind",
    type=click.Choice(["cron", "drift", "cloud", "samples"]),
    default="cron",
    show_default=True,
    help="Condition: none, falling acceptance, a new cloud model, or enough fresh samples.",
)
@click.option(
    "--limit",
    type=click.FloatRange(0),
    help="Of the condition: fall of the share, or samples.",
)
@config_option
@command_errors
def add(  # one parameter an option
    name: str,
    changes: tuple[str, ...],
    timing: str,
    kind: "Kind",
    limit: float | None,
    config: Path | None,
) -> None:
    """Add a schedule, as in `add nightly --at '0 3 * * *' rounds=5`."""
    from cloud_hub.rounds.conditions import LIMITS
    from cloud_hub.rounds.job_store import trigger_of
    from cloud_hub.store import schedule as store
    from fleet.federation.plan import Plan, texts_of
    from fleet.ids import is_level

    now, texts = datetime.now(UTC), texts_of(changes)
    plan = Plan.from_texts(texts)
    if not is_level(name):
        raise InvalidInputError(
            f"{name!r} is no name: take 1 to 63 lower-case letters, digits, '-' or '_'"
        )
    made = store.Schedule(
        name=name,
        kind=kind,
        timing=timing,
        limit=LIMITS[kind] if limit is None else limit,
        plan={key: getattr(plan, key) for key in texts},
        next_at=trigger_of(timing).get_next_fire_time(None, now),
    )
    with open_database(config) as database, database.write() as connection:
        store.add(connection, made)
    click.echo(f"{name} is due at {made.next_at:%Y-%m-%d %H:%M} UTC, if a hub serves then")


@schedule.command("list")
@config_option
@command_errors
def list_schedules(config: Path | None) -> None:
    """One line a schedule, and what came of it last."""
    from cloud_hub.rounds import telling
    from cloud_hub.store import schedule as store

    with open_database(config) as database, database.read() as connection:
        found = store.schedules(connection)
    for line in telling.schedule_lines(found):
        click.echo(line)


@schedule.command()
@click.argument("name")
@config_option
@command_errors
def remove(name: str, config: Path | None) -> None:
    """Remove a schedule; a run that it began goes on."""
    from cloud_hub.store import schedule as store

    with open_database(config) as database, database.write() as connection:
        store.remove(connection, name)
    click.echo(f"{name} is removed")


def _conduct(
    settings: "HubSettings",
    database: "Database",
    run_id: str,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Conducts a run, and says how it went; it begins only where there is a broker."""
    from cloud_hub.rounds import telling
    from cloud_hub.rounds.running import take_up
    from cloud_hub.store import rounds as store
    from fleet.ids import new_id
    from fleet.transport.mqtt import connect

    board = Board()

    def show(told: "Told") -> None:
        board.show(f"{told.number} {told.phase}", telling.told_line(told))

    async def work() -> None:
        client = f"rounds-{new_id()[:8]}"
        async with connect(settings.broker, client_id=client, will=None) as transport:
            begin()
            click.echo(f"run {run_id}; stop with Ctrl-C")
            await take_up(transport, database, run_id, show)

    run_until_signal(work())
    board.end()
    now = datetime.now(UTC)
    with database.read() as connection:
        run, found = store.run_of(connection, run_id, now), store.rounds_of(connection, run_id)
    for line in telling.run_page(run, found, now):
        click.echo(line)


class Board:
    """Lines that say how something goes: one a subject, which at a terminal changes in place."""

    def __init__(self) -> None:
        self._subject, self._line = "", ""
        self._is_live = sys.stdout.isatty()

    def show(self, subject: str, line: str) -> None:
        """Says a line, unless it was just said; elsewhere than at a terminal, one a subject."""
        if line == self._line or (subject == self._subject and not self._is_live):
            return
        if self._is_live:
            start = "\r\x1b[2K" if subject == self._subject else "\n" * bool(self._subject)
            click.echo(f"{start}{line}", nl=False)
        else:
            click.echo(line)
        self._subject, self._line = subject, line

    def end(self) -> None:
        """Leaves the last line as it is."""
        if self._is_live and self._subject:
            click.echo()


def rounds_settings(config: Path | None) -> "HubSettings":
    """The settings, for commands that print for people: only warnings are logged."""
    from cloud_hub.settings import HubSettings
    from fleet.logs import configure_logs
    from fleet.settings import load_settings

    loaded = load_settings(HubSettings, config)
    configure_logs(log_format=loaded.log.format, level="warning")
    return loaded


@contextmanager
def open_database(config: Path | None) -> "Iterator[Database]":
    """The hub's database, which must be there and of this release."""
    from cloud_hub.store import revision
    from cloud_hub.store.database import Database

    with Database(rounds_settings(config).store_url, must_exist=True) as database:
        revision.require_current(database)
        yield database
