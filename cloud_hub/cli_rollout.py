"""`cloud_hub rollout`: a model version to a canary share first; its figures decide."""

from datetime import UTC, datetime
from pathlib import Path

import click

from cloud_hub.cli_query import config_option
from cloud_hub.cli_rounds import open_database, rounds_settings
from fleet.process import command_errors, run_until_signal


@click.command()
@click.argument("version")
@click.option("--source", required=True, help="URL of the models, as in http://hub:8080/models.")
@click.option("--share", default=0.1, show_default=True, type=click.FloatRange(0, 1))
@click.option(
    "--least", default=1000, show_default=True, help="Tokens judged, and checked, before."
)
@click.option("--wait", "wait_s", default=86_400.0, show_default=True, help="Seconds for these.")
@config_option
@command_errors
def rollout(
    version: str, source: str, share: float, least: int, wait_s: float, config: Path | None
) -> None:
    """Let a share of the devices run VERSION; widen it, or take it back, by what they do.

    It is taken back as soon as corrections or false accepts are surely more than on the other
    devices, and widened once enough tokens were seen without that. After Ctrl-C the canaries
    keep it.
    """
    from cloud_hub.rollout.controller import Rollout, Wish
    from fleet.ids import new_id
    from fleet.transport.mqtt import connect

    settings, wish = rounds_settings(config), Wish(version, source, share, least, wait_s)
    name = f"{datetime.now(UTC):%Y-%m-%d}-{new_id()[:6]}"
    with open_database(config) as database:

        async def work() -> None:
            client = f"rollout-{new_id()[:8]}"
            async with connect(settings.broker, client_id=client, will=None) as transport:
                await Rollout(transport, database, name, wish, click.echo).run()

        click.echo(f"rollout {name} of {version}")
        run_until_signal(work())
