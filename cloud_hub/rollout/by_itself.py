"""What a hub does by itself with what runs have kept: publishes it, rolls it out, goes on."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cloud_hub.rollout import controller
from cloud_hub.rollout.controller import Wish
from cloud_hub.settings import RolloutSettings
from cloud_hub.store import catalog, rounds
from cloud_hub.store import rollouts as store
from cloud_hub.store.database import Database
from fleet.errors import CapacityError, FleetError
from fleet.ids import new_id
from fleet.logs import get_logger
from fleet.models.bundle import Bundle
from fleet.transport.base import Transport

LOOK_S = 30.0  # between two looks at runs and rollouts
YOUNG = timedelta(seconds=10)

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Hub:
    """What versions are made of, and how they reach devices."""

    transport: Transport
    database: Database
    settings: RolloutSettings
    models: Path  # folder of the bundles that rounds made
    bundle: Callable[[], Bundle]  # whose head was trained


async def run(hub: Hub) -> None:
    """Looks now and then, until cancelled; a rollout under way then waits for the next hub."""
    said = ""
    while True:
        try:
            if hub.settings.key is not None:
                await asyncio.to_thread(_publish, hub, hub.settings.key)
            own = await asyncio.to_thread(_begin, hub) if hub.settings.by_itself else ""
            await _go_on(hub, own)
            said = ""
        except FleetError as error:
            if str(error) != said:  # told once, and tried again
                said = str(error)
                log.warning("rollouts wait", reason=said)
        await asyncio.sleep(LOOK_S)


def new_name(now: datetime) -> str:
    """A name for a rollout."""
    return f"{now:%Y-%m-%d}-{new_id()[:6]}"


def _publish(hub: Hub, key: Path) -> None:
    """Makes the bundle of the newest run, if it has ended, kept a round, and is not published."""
    with hub.database.read() as connection:
        runs = rounds.runs(connection, datetime.now(UTC))
        made = {each.round_id for each in catalog.versions(connection)}
    newest = next((each for each in runs if each.state == "done" and each.kept), None)
    if newest is None or newest.run_id in made:
        return
    # Flower and torch take a second to import, and most looks find nothing to do.
    from cloud_hub.rounds.product import publish

    found = publish(hub.database, newest.run_id, hub.bundle(), hub.models, key)
    log.info("run published", run=newest.run_id, version=found.version)


def _begin(hub: Hub) -> str:
    """Begins a rollout of the newest version that a run made, unless it had one already.

    Its name, or nothing.
    """
    now, settings = datetime.now(UTC), hub.settings
    with hub.database.read() as connection:
        made = [each for each in catalog.versions(connection) if each.round_id]
        rollouts = store.rollouts(connection, now)
        is_anybody_up = bool(store.ready_nodes(connection))
    tried = {each.version for each in rollouts}
    if not made or made[0].version in tried or any(each.is_open for each in rollouts):
        return ""
    if settings.source is None or not is_anybody_up:
        return ""
    version, name = made[0].version, new_name(now)
    wish = Wish(version, settings.source, settings.share, settings.least, settings.wait_s)
    controller.begin(hub.database, name, wish, f"by the hub, after run {made[0].round_id}")
    log.info("rollout begun", rollout=name, version=version)
    return name


async def _go_on(hub: Hub, own: str) -> None:
    """Conducts the rollout that is open, if nobody does: begun here, or left by a process.

    One that was begun elsewhere a moment ago is about to be taken up by who began it.
    """
    now = datetime.now(UTC)
    with hub.database.read() as connection:
        found = [each for each in store.rollouts(connection, now) if each.is_open]
    left = found[0] if found else None
    if left is None or left.holder or (left.rollout_id != own and left.started_at > now - YOUNG):
        return

    def tell(line: str) -> None:
        log.info("rollout", rollout=left.rollout_id, version=left.version, told=line)

    try:
        await controller.take_up(hub.transport, hub.database, left.rollout_id, tell)
    except CapacityError:
        return  # another hub was first
