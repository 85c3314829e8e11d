"""The lock on rollouts, over all hubs on a database: one process conducts, and one at a time."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from cloud_hub.store import locks
from cloud_hub.store import rollouts as store
from cloud_hub.store.database import Database
from fleet.errors import CapacityError, StoreError
from fleet.ids import new_id
from fleet.logs import get_logger

BEAT_S = 2.0  # between two looks at the database
LEASE_S = 60.0  # after which a rollout whose process is silent may be taken up
STOPPED = "stopped by an operator: the canaries keep the version"

log = get_logger(__name__)


class Lease:
    """Held for one rollout; hears when to stop."""

    def __init__(self, database: Database, rollout_id: str) -> None:
        self.why = ""  # to stop; empty: go on
        self.is_lost = False  # somebody else may conduct the rollout by now
        self._database, self._id = database, rollout_id
        self._holder = f"{rollout_id[:48]}.{new_id()[:12]}"
        self._kept_at = time.monotonic()

    def take(self) -> None:
        """Takes the lock; blocks.

        Raises:
            CapacityError: A rollout is conducted elsewhere.
            StoreError: The database cannot be used.
        """
        holder, other = self._keep()
        if holder != self._holder:
            raise CapacityError(
                f"rollout {other!r} is being conducted, and rollouts run one at a time: wait, or"
                f" `cloud_hub rollout stop {other}`"
            )

    async def run(self) -> None:
        """Keeps the lock until cancelled."""
        while True:
            await asyncio.sleep(BEAT_S)
            await asyncio.to_thread(self._beat)

    def leave(self) -> None:
        """Lets the lock go; blocks."""
        try:
            with self._database.write() as connection:
                locks.leave(connection, self._holder, datetime.now(UTC))
        except StoreError as error:
            log.warning("the lock on rollouts ends by itself", reason=str(error))

    def _keep(self) -> tuple[str, str]:
        now, lease = datetime.now(UTC), timedelta(seconds=LEASE_S)
        with self._database.write() as connection:
            found = locks.take(connection, store.LOCK, self._holder, self._id, now, lease)
        self._kept_at = time.monotonic()
        return found

    def _beat(self) -> None:
        try:
            holder, _ = self._keep()
            with self._database.read() as connection:
                state = store.rollout_of(connection, self._id, datetime.now(UTC)).state
        except StoreError as error:
            log.warning("the rollout cannot reach the database", reason=str(error))
            if time.monotonic() - self._kept_at > LEASE_S / 2:
                self.is_lost, self.why = True, "the database is away"
            return
        if holder != self._holder:
            self.is_lost, self.why = True, "another process took the rollout up"
        elif state == "stopping":
            self.why = STOPPED
