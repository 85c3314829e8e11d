"""`cloud_hub calibrate`: the largest threshold that spot checks prove safe."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloud_hub.cli_query import config_option, since_option, url_of
from fleet.process import command_errors

if TYPE_CHECKING:
    from cloud_hub.calibration import Calibrated, Loss, Wanted


@click.command()
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    default=0.02,
    show_default=True,
    help="Mean loss a token of a picture that is allowed.",
)
@click.option(
    "--error",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    help="How often the limit may be exceeded all the same.",
)
@click.option(
    "--loss",
    type=click.Choice(["mismatch", "harm"]),
    default="mismatch",
    show_default=True,
    help="What a local token may cost: another token than the cloud's, or how far off it lies.",
)
@click.option("--policy", help="Pictures of this policy only.")
@click.option("--device-version", help="Pictures of this device model only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of sentences.")
@since_option
@config_option
@command_errors
def calibrate(  # noqa: PLR0913  # one parameter an option
    limit: float,
    error: float,
    loss: "Loss",
    policy: str | None,
    device_version: str | None,
    as_json: bool,
    since: str | None,
    config: Path | None,
) -> None:
    """Find the largest threshold that spot checks prove safe; docs/method.md has the theorem."""
    from cloud_hub.calibration import Wanted

    kinds = {"policy": policy, "device_version": device_version}
    found = _calibrated(url_of(config), since, kinds, Wanted(loss, limit, error))
    click.echo(json.dumps(asdict(found), indent=2) if as_json else _sentences(found))


def _calibrated(
    url: str, since: str | None, kinds: dict[str, str | None], wanted: "Wanted"
) -> "Calibrated":
    from cloud_hub.calibration import calibrate as find
    from cloud_hub.report import parse_since
    from cloud_hub.store import revision
    from cloud_hub.store.checks import checked_pictures
    from cloud_hub.store.database import Database

    moment = parse_since(since, datetime.now(UTC))
    with Database(url, must_exist=True) as database:
        revision.require_current(database)
        with database.read() as connection:
            return find(checked_pictures(connection, moment, **kinds), wanted)


def _sentences(found: "Calibrated") -> str:
    return (
        f"{found.pictures} pictures of {found.policy} by device {found.device_version},"
        f" {found.tokens_checked} tokens checked\n"
        f"threshold in force  {found.threshold_in_force:.4g}\n"
        f"largest safe one    {found.threshold:.4g}: {found.loss} {found.risk:.4f} measured,"
        f" at most {found.limit:g} with probability {1 - found.error:g},"
        f" {found.calls:.0%} of the tokens above it\n"
        f"devices take it as  EDGE_AGENT_GENERATION__THRESHOLD={found.threshold:.6g}"
    )
