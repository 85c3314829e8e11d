"""`cloud_hub query`: what devices reported, as tables, JSON or CSV."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleet.process import command_errors

if TYPE_CHECKING:
    from cloud_hub.report import Form

Command = Callable[..., Any]

config_option = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file in TOML; `cloud_hub settings` lists what can be set.",
)
_json = click.option("--json", "form", flag_value="json", help="Print JSON instead of a table.")
_csv = click.option("--csv", "form", flag_value="csv", help="Print CSV instead of a table.")
since_option = click.option(
    "--since", help="Only what was received since: a span such as 90m, 12h or 7d, or a date."
)
_BY = "node, version, cloud, policy, day"


def _by(names: str = _BY, default: str = "node") -> Callable[[Command], Command]:
    return click.option(
        "--by",
        default=default,
        show_default=True,
        callback=lambda _context, _option, text: [name for name in text.split(",") if name],
        help=f"Group by some of {names}, joined by commas; empty: all together.",
    )


def _question(command: Command) -> Command:
    """What all questions take."""
    for option in (command_errors, config_option, since_option, _csv, _json):
        command = option(command)
    return command


@click.group()
def query() -> None:
    """Print what devices reported; docs/metrics.md defines the columns."""


@query.command()
@_question
def devices(form: "Form | None", since: str | None, config: Path | None) -> None:
    """One line a device: pictures, shares, round trips, bytes, latency, tokens per second."""
    from cloud_hub import report

    report.devices(url_of(config), since, form or "table")


@query.command()
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1))
@_question
def generations(limit: int, form: "Form | None", since: str | None, config: Path | None) -> None:
    """One line a picture, newest first."""
    from cloud_hub import report

    report.generations(url_of(config), since, limit, form or "table")


@query.command()
@_by()
@_question
def acceptance(by: list[str], form: "Form | None", since: str | None, config: Path | None) -> None:
    """What devices accepted alone, what the cloud verified and corrected, and what that cost."""
    _ask("acceptance", by, form, since, config)


@query.command()
@_by()
@_question
def latency(by: list[str], form: "Form | None", since: str | None, config: Path | None) -> None:
    """Quantiles of a picture's seconds, of their parts, and of its bytes."""
    _ask("latency", by, form, since, config)


@query.command()
@_by(f"{_BY}, score, region")
@_question
def checks(by: list[str], form: "Form | None", since: str | None, config: Path | None) -> None:
    """How often the cloud would have drawn another token where the device decided alone."""
    _ask("spot_checks", by, form, since, config)


@query.command()
@_by(default="")
@_question
def reliability(by: list[str], form: "Form | None", since: str | None, config: Path | None) -> None:
    """How often device and cloud agree, by the device's score."""
    _ask("reliability", by, form, since, config)


@query.command()
@_by()
@_question
def drift(by: list[str], form: "Form | None", since: str | None, config: Path | None) -> None:
    """How far scores are off those of the week before; without --since, the last day's."""
    _ask("drift", by, form, since or "1d", config)


@query.command()
@click.argument("statement")
@click.option("--limit", default=10_000, show_default=True, type=click.IntRange(min=1))
@_json
@_csv
@config_option
@command_errors
def sql(statement: str, limit: int, form: "Form | None", config: Path | None) -> None:
    """Print what one SELECT finds; the database is opened for reading only.

    The views v_acceptance, v_latency, v_spot_check, v_score, v_picture and others are for this.
    """
    from cloud_hub import report

    report.statement(url_of(config), statement, limit, form or "table")


@query.command()
@config_option
@command_errors
def metrics(config: Path | None) -> None:
    """Print the fleet's sums as Prometheus reads them, for a text-file collector."""
    from cloud_hub import report

    report.exposition(url_of(config))


def _ask(
    question: str, by: list[str], form: "Form | None", since: str | None, config: Path | None
) -> None:
    from cloud_hub import report

    report.ask(url_of(config), question, by, since, form or "table")


def url_of(config: Path | None) -> str:
    """The URL of the database in force."""
    from cloud_hub.settings import HubSettings
    from fleet.logs import configure_logs
    from fleet.settings import load_settings

    loaded = load_settings(HubSettings, config)
    configure_logs(log_format=loaded.log.format, level=loaded.log.level)
    return loaded.store_url
