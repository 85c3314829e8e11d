"""APScheduler's jobs in the hub's own table: plain columns, no pickle."""

from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.job import Job
from apscheduler.jobstores.base import BaseJobStore, JobLookupError
from apscheduler.triggers.cron import CronTrigger

from cloud_hub.store import schedule as store
from cloud_hub.store.database import Database
from cloud_hub.store.schedule import Schedule
from fleet.errors import InvalidInputError

GRACE_S = 3600  # a time that was missed by more is told of, and not made up for


def trigger_of(timing: str) -> CronTrigger:
    """The times of a crontab line, in UTC.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        return CronTrigger.from_crontab(timing, timezone=UTC)
    except ValueError as error:
        raise InvalidInputError(
            f"{timing!r} is no crontab line ({error}): take five fields, as in '0 3 * * *'"
        ) from error


class TableJobStore(BaseJobStore):  # type: ignore[misc]  # APScheduler has no types
    """The table `round_schedule`; whoever has the database may add and remove rows."""

    def __init__(self, database: Database, fire: Callable[[str], None]) -> None:
        """`fire` is called with a schedule's name when it is due."""
        super().__init__()
        self._database, self._fire = database, fire

    def lookup_job(self, job_id: str) -> Job | None:
        """See `BaseJobStore`."""
        with self._database.read() as connection:
            found = store.schedules(connection, name=job_id)
        return self._job(found[0]) if found else None

    def get_due_jobs(self, now: datetime) -> list[Job]:
        """See `BaseJobStore`."""
        with self._database.read() as connection:
            return [self._job(each) for each in store.schedules(connection, due=now)]

    def get_next_run_time(self) -> datetime | None:
        """See `BaseJobStore`."""
        with self._database.read() as connection:
            return store.next_time(connection)

    def get_all_jobs(self) -> list[Job]:
        """See `BaseJobStore`."""
        with self._database.read() as connection:
            return [self._job(each) for each in store.schedules(connection)]

    def update_job(self, job: Job) -> None:
        """See `BaseJobStore`; of a job only its next time changes."""
        with self._database.write() as connection:
            store.set_next(connection, job.id, job.next_run_time)

    def remove_job(self, job_id: str) -> None:
        """See `BaseJobStore`."""
        try:
            with self._database.write() as connection:
                store.remove(connection, job_id)
        except InvalidInputError as error:
            raise JobLookupError(job_id) from error

    def add_job(self, job: Job) -> None:
        """Not this way: schedules are rows that the command line adds."""
        raise NotImplementedError("add a schedule to the table")

    def remove_all_jobs(self) -> None:
        """Not this way either."""
        raise NotImplementedError("remove schedules by name")

    def _job(self, schedule: Schedule) -> Job:
        job = Job(
            self._scheduler,
            id=schedule.name,
            name=schedule.name,
            func=self._fire,
            args=(schedule.name,),
            kwargs={},
            trigger=trigger_of(schedule.timing),
            executor="default",
            misfire_grace_time=GRACE_S,
            coalesce=True,
            max_instances=1,
            next_run_time=schedule.next_at,
        )
        job._jobstore_alias = self._alias
        return job
