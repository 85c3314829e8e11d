"""Runs that begin by themselves: a hub's scheduler, in a thread, over the table of schedules."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.events import EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.schedulers.background import BackgroundScheduler

from cloud_hub.rounds.conditions import Finding, Serving, look
from cloud_hub.rounds.job_store import TableJobStore
from cloud_hub.store import rounds, schedule
from cloud_hub.store.database import Database
from cloud_hub.store.schedule import Schedule
from fleet.errors import FleetError
from fleet.federation.plan import Plan
from fleet.logs import get_logger
from fleet.models.bundle import Bundle
from fleet.transport.base import Transport

LOOK_S = 30.0  # between two looks for schedules that were added elsewhere
APART = timedelta(seconds=30)  # two hubs that fire within it mean the same time

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Hub:
    """What a scheduled run needs of the hub."""

    transport: Transport
    database: Database
    serving: Serving
    bundle: Callable[[], Bundle]  # whose head is trained


async def run(hub: Hub) -> None:
    """Fires schedules until cancelled; a run under way is then stopped, and may be resumed."""
    loop = asyncio.get_running_loop()
    under_way: set[asyncio.Task[None]] = set()
    is_ending = threading.Event()

    async def work(name: str) -> None:
        if is_ending.is_set():
            return
        task = asyncio.create_task(_fire(hub, name), name=f"round schedule {name}")
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def fire(name: str) -> None:
        """Called by the scheduler, in a thread of its own, until the run has ended."""
        asyncio.run_coroutine_threadsafe(work(name), loop).result()

    scheduler = BackgroundScheduler(timezone=UTC)
    scheduler.add_jobstore(TableJobStore(hub.database, fire))
    scheduler.add_listener(lambda event: _missed(hub.database, event), EVENT_JOB_MISSED)
    await asyncio.to_thread(scheduler.start)
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            scheduler.wakeup()
    finally:
        is_ending.set()
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        await asyncio.to_thread(scheduler.shutdown)


async def _fire(hub: Hub, name: str) -> None:
    """Looks at one schedule, and runs what it asks for; whatever happens is told in its row."""
    try:
        found = await asyncio.to_thread(_claim, hub.database, name)
        told = None if found is None else await _answer(hub, found)
    except FleetError as error:
        told = f"no run: {error}"
    if told is not None:
        log.info("round schedule", schedule=name, told=told)
        moment = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        await asyncio.to_thread(_tell, hub.database, name, f"{moment}: {told}")


async def _answer(hub: Hub, due: Schedule) -> str:
    now = datetime.now(UTC)
    finding, left = await asyncio.to_thread(_look, hub, due, now)
    if not finding.holds and left is None:
        return f"no run: {finding.why}"
    # torch and Flower take a second to import, and most schedules find nothing to do.
    from cloud_hub.rounds import running

    run_id = left
    if run_id is None:
        run_id = running.new_name(now)
        plan = Plan.from_fields({"cloud": hub.serving.cloud_version, **due.plan})
        bundle = await asyncio.to_thread(hub.bundle)
        why = f"by schedule {due.name}: {finding.why}"
        await asyncio.to_thread(running.begin, hub.database, run_id, plan, bundle, why)
    done = await running.take_up(hub.transport, hub.database, run_id)
    return f"run {run_id} is {done.state}, {done.kept} of {done.rounds} rounds were kept"


def _look(hub: Hub, due: Schedule, now: datetime) -> tuple[Finding, str | None]:
    """Whether the condition holds, and the schedule's own run that a hub left unfinished."""
    with hub.database.read() as connection:
        finding = look(due.kind, due.limit, schedule.facts(connection, now), hub.serving)
        return finding, _interrupted(rounds.runs(connection, now), due.name)


def _interrupted(runs: list[rounds.Run], name: str) -> str | None:
    mine = (run for run in runs if run.started_by.startswith(f"by schedule {name}:"))
    return next((run.run_id for run in mine if run.is_interrupted), None)


def _claim(database: Database, name: str) -> Schedule | None:
    with database.write() as connection:
        found = schedule.schedules(connection, name=name)
        if not found or not schedule.claim(connection, name, datetime.now(UTC), APART):
            return None
    return found[0]


def _tell(database: Database, name: str, what: str) -> None:
    with database.write() as connection:
        schedule.tell(connection, name, what)


def _missed(database: Database, event: JobExecutionEvent) -> None:
    what = f"the run of {event.scheduled_run_time:%Y-%m-%d %H:%M} was missed: no hub was up"
    log.warning("round schedule missed", schedule=event.job_id, at=event.scheduled_run_time)
    _tell(database, event.job_id, what)
