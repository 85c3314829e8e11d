"""A run of rounds that the database holds: begun, taken up by one process at a time, told of."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from cloud_hub.rounds.conduct import conduct
from cloud_hub.rounds.exchange import number_of
from cloud_hub.rounds.telling import Told
from cloud_hub.store import locks
from cloud_hub.store import rounds as store
from cloud_hub.store.database import Database
from cloud_hub.store.rounds import DatabaseLedger, Run, State
from fleet.errors import CapacityError, FleetError, InvalidInputError, StoreError
from fleet.federation.collect import Observer, Progress, Stopped
from fleet.federation.plan import Plan
from fleet.federation.task import Task
from fleet.ids import NodeId, is_level, new_id
from fleet.logs import get_logger
from fleet.models.bundle import STEP_GRAPH, Bundle
from fleet.models.head_weights import HeadWeights, head_of
from fleet.transport.base import Transport

BEAT_S = 2.0  # between two looks at the database
LEASE_S = 60.0  # after which a run whose process is silent may be taken up
_ENDED = "its process ended"

log = get_logger(__name__)


Show = Callable[[Told], None]


def new_name(now: datetime) -> str:
    """A name for a run that was given none."""
    return f"{now:%Y-%m-%d}-{new_id()[:6]}"


def begin(database: Database, name: str, plan: Plan, bundle: Bundle, started_by: str) -> None:
    """Notes a run that trains the head of a bundle; `take_up` runs it.

    Raises:
        InvalidInputError: The name is taken, or not usable.
        BundleError: The bundle has no head that can be trained.
    """
    if not is_level(name):
        raise InvalidInputError(
            f"{name!r} is no name for a run: take 1 to 63 lower-case letters, digits, '-' or '_'"
        )
    head = head_of(bundle.read(STEP_GRAPH))
    run = Run(
        run_id=name,
        state="waiting",
        started_by=started_by,
        reason="",
        plan=asdict(plan),
        base_version=bundle.manifest.device_version,
        head_version=head.version,
        progress={},
        created_at=datetime.now(UTC),
        ended_at=None,
    )
    with database.write() as connection:
        store.begin(connection, run, head.to_bytes())


async def take_up(
    transport: Transport, database: Database, run_id: str, show: Show = lambda _: None
) -> Run:
    """Runs what is missing of a run; how it stands then. Cancelled, it may be resumed.

    Raises:
        CapacityError: Rounds are conducted elsewhere.
        InvalidInputError: There is no such run, or its plan cannot be used.
        StoreError: The database cannot be used.
    """
    keeper = _Keeper(database, run_id, show)
    plan, task = await _begun(keeper)
    beating = asyncio.create_task(keeper.run(), name="round lock")
    ledger = DatabaseLedger(database, run_id, keeper.name_of)
    observer = Observer(keeper.watch, lambda: keeper.is_stopped)
    state: State = "interrupted"
    reason = _ENDED
    try:
        await conduct(transport, run_id, plan.to_config(), ledger, observer, task)
        state, reason = "done", ""
    except Stopped:
        state, reason = "stopped", keeper.why
    except FleetError as error:
        state, reason = "failed", str(error)
        raise
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await asyncio.to_thread(keeper.end, state, reason)
    with database.read() as connection:
        return store.run_of(connection, run_id, datetime.now(UTC))


def ask_to_stop(database: Database, run_id: str) -> Run:
    """Asks whoever conducts a run to stop; how it stood.

    Raises:
        InvalidInputError: There is no such run, or nobody conducts it.
    """
    with database.write() as connection:
        run = store.run_of(connection, run_id, datetime.now(UTC))
        if not run.holder:
            raise InvalidInputError(f"run {run_id!r} is {run.state}: nobody conducts it")
        store.set_state(connection, run_id, "stopping", "", None)
    return run


async def _begun(keeper: "_Keeper") -> tuple[Plan, Task]:
    """What the keeper begins; a cancelled wait would leave its thread to take the lock."""
    beginning = asyncio.create_task(asyncio.to_thread(keeper.begin), name="begin of a run")
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        await asyncio.wait([beginning])
        if beginning.exception() is None:
            await asyncio.to_thread(keeper.end, "interrupted", _ENDED)
        raise


class _Keeper:
    """Holds the lock on rounds for one run, says what it waits for, and hears when to stop."""

    def __init__(self, database: Database, run_id: str, show: Show) -> None:
        self.is_stopped = False
        self.why = "stopped by an operator"
        self._database, self._run_id, self._show = database, run_id, show
        self._holder = f"{run_id[:48]}.{new_id()[:12]}"
        self._names: dict[int, str] = {}
        self._told: Told | None = None
        self._kept_at = 0.0

    def begin(self) -> tuple[Plan, Task]:
        """Takes the lock; what there is to run."""
        now = datetime.now(UTC)
        with self._database.write() as connection:
            run = store.run_of(connection, self._run_id, now)
            holder, other = self._lock(connection, now)
            if holder != self._holder:
                raise CapacityError(
                    f"run {other!r} is being conducted, and rounds run one at a time: wait, or"
                    f" `cloud_hub rounds stop {other}`"
                )
            store.set_state(connection, self._run_id, "running", "", None)
            head = HeadWeights.from_bytes(store.head_of(connection, self._run_id))
        return Plan.from_fields(run.plan), Task(head)

    async def run(self) -> None:
        """Keeps the lock until cancelled."""
        while True:
            await asyncio.to_thread(self._beat)
            await asyncio.sleep(BEAT_S)

    def watch(self, progress: Progress) -> None:
        """Takes what the round waits for; called in its thread."""
        until = datetime.now(UTC) + timedelta(seconds=progress.left_s)
        awaited = tuple(sorted(map(self.name_of, progress.awaited)))
        self._told = Told(progress.number, progress.phase, progress.asked, awaited, until)
        self._show(self._told)

    def name_of(self, number: int) -> str:
        """A node's name by its number in the run."""
        if number not in self._names:
            with self._database.read() as connection:
                known = store.node_ids(connection)
            self._names |= {number_of(NodeId(node)): node for node in known}
            self._names.setdefault(number, f"node-{number:x}")
        return self._names[number]

    def end(self, state: State, reason: str) -> None:
        """Says how the run ended, and lets the lock go."""
        now = datetime.now(UTC)
        with self._database.write() as connection:
            if self._lock(connection, now)[0] == self._holder:
                ended_at = now if state in {"done", "failed"} else None
                store.set_state(connection, self._run_id, state, reason, ended_at)
                locks.leave(connection, self._holder, now)

    def _lock(self, connection: Any, now: datetime) -> tuple[str, str]:
        lease = timedelta(seconds=LEASE_S)
        found = locks.take(connection, store.LOCK, self._holder, self._run_id, now, lease)
        self._kept_at = time.monotonic()
        return found

    def _beat(self) -> None:
        try:
            with self._database.write() as connection:
                holder, _ = self._lock(connection, datetime.now(UTC))
                if holder != self._holder:
                    self._stop("another process took the run up")
                    return
                if store.state_of(connection, self._run_id) == "stopping":
                    self._stop("stopped by an operator")
                if self._told is not None:
                    store.note_progress(connection, self._run_id, _plain(self._told))
        except StoreError as error:
            log.warning("rounds cannot reach the database", reason=str(error))
            if time.monotonic() - self._kept_at > LEASE_S / 2:
                self._stop("the database is away")

    def _stop(self, why: str) -> None:
        self.is_stopped, self.why = True, why


def _plain(told: Told) -> dict[str, Any]:
    return {**asdict(told), "awaited": list(told.awaited), "until": told.until.isoformat()}
