"""A rollout from its canaries to all devices or back, over the settings from afar.

What it has decided stands in the database before it is done, so that whoever takes it up goes on.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime

from cloud_hub.desired import configure
from cloud_hub.rollout.lease import STOPPED, Lease
from cloud_hub.rollout.plan import Decision, canaries, decide
from cloud_hub.store import catalog
from cloud_hub.store import rollouts as store
from cloud_hub.store.database import Database
from cloud_hub.store.rollouts import Rollout, State
from fleet.errors import FleetError, InvalidInputError
from fleet.ids import NodeId
from fleet.transport.base import Transport

LOOK_S = 5.0  # between two looks at the figures
AWAY_S = 30.0  # until a device that does not acknowledge is left to the broker
AT_ONCE = 16  # devices that are told at a time

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is rolled out, and how carefully."""

    version: str
    source: str  # URL below which devices fetch it
    share: float = 0.1  # of the devices that are up, that are canaries
    least: int = 1000  # tokens judged, and checked, on the canaries before it is widened
    wait_s: float = 86_400.0  # for these tokens, or it is rolled back

    @classmethod
    def of(cls, rollout: Rollout) -> "Wish":
        """The wish of a rollout."""
        return cls(**{each.name: rollout.plan[each.name] for each in fields(cls)})


def begin(database: Database, rollout_id: str, wish: Wish, started_by: str) -> Rollout:
    """Notes a rollout with its canaries; `take_up` conducts it.

    Raises:
        InvalidInputError: The catalog has no such version, no device is up, or a rollout of this
            name or of another version is open.
        StoreError: The database cannot be used.
    """
    now = datetime.now(UTC)
    with database.write() as connection:
        known = [each.version for each in catalog.versions(connection) if each.kind == "device"]
        ready = store.ready_nodes(connection)
        others = [each for each in store.rollouts(connection, now) if each.is_open]
        _check(wish.version, known, others)
        if not ready:
            raise InvalidInputError("no device is up: a rollout needs some to try the version")
        chosen = canaries(list(ready), wish.version, wish.share)
        before = {node: ready[node].version for node in chosen}
        previous = sorted({node.version for node in ready.values()} - {wish.version})
        plan = {
            **asdict(wish),
            "started_by": started_by,
            "canaries": before,
            "previous": previous,
        }
        alone = previous[0] if len(previous) == 1 else ""
        made = Rollout(rollout_id, wish.version, alone, "running", "", plan, now, None)
        store.begin(connection, made)
    return made


def _check(version: str, known: Sequence[str], others: Sequence[Rollout]) -> None:
    if version not in known:
        newest = f"the newest are {', '.join(known[:3])}" if known else "it is empty"
        raise InvalidInputError(
            f"the catalog has no device version {version!r}: {newest}, and"
            " `cloud_hub rounds publish` makes one"
        )
    if others:
        other = others[0]
        raise InvalidInputError(
            f"rollout {other.rollout_id} of {other.version} is {other.state}: wait for it, or"
            f" `cloud_hub rollout stop {other.rollout_id}`"
        )


async def take_up(
    transport: Transport, database: Database, rollout_id: str, tell: Tell = lambda _: None
) -> Rollout:
    """Does what is left of a rollout; how it stands then. Cancelled, another process may go on.

    Raises:
        CapacityError: A rollout is conducted elsewhere.
        InvalidInputError: There is no such rollout.
        StoreError: The database cannot be used.
    """
    lease = Lease(database, rollout_id)
    await asyncio.to_thread(lease.take)
    beating = asyncio.create_task(lease.run(), name="rollout lock")
    try:
        conductor = Conductor(transport, database, rollout_id, lease, tell)
        await conductor.run()
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        await asyncio.to_thread(lease.leave)
    return _read(database, rollout_id)


def ask_to_stop(database: Database, rollout_id: str) -> Rollout:
    """Stops a rollout where it stands, or asks whoever conducts it to; how it stands then.

    Raises:
        InvalidInputError: There is no such rollout, or nothing is left of it to stop.
    """
    now = datetime.now(UTC)
    with database.write() as connection:
        found = store.rollout_of(connection, rollout_id, now)
        if not found.is_open:
            raise InvalidInputError(f"rollout {rollout_id!r} is {found.state}: nothing is left")
        if found.holder:
            store.move(connection, rollout_id, "stopping", found.reason)
        else:
            store.move(connection, rollout_id, "stopped", STOPPED, now)
    return _read(database, rollout_id)


def reopen(database: Database, rollout_id: str) -> None:
    """Lets a rollout that was stopped go on from its canaries, or from what it had decided.

    Raises:
        InvalidInputError: There is no such rollout, it has come to its end, or another is open.
    """
    now = datetime.now(UTC)
    with database.write() as connection:
        found = store.rollout_of(connection, rollout_id, now)
        others = [each for each in store.rollouts(connection, now) if each.is_open]
        if found.is_open:
            return
        if found.state != "stopped":
            raise InvalidInputError(
                f"rollout {rollout_id!r} is {found.state}: {found.reason or 'it has ended'}"
            )
        _check(found.version, [found.version], others)
        store.move(connection, rollout_id, "running", "")


class Conductor:
    """One rollout at work; whatever it does stands in the database."""

    def __init__(
        self, transport: Transport, database: Database, rollout_id: str, lease: Lease, tell: Tell
    ) -> None:
        self._transport, self._database, self._id = transport, database, rollout_id
        self._lease, self._tell = lease, tell
        self._rollout = _read(database, rollout_id)
        self._wish = Wish.of(self._rollout)
        self._canaries: Mapping[str, str] = self._rollout.plan["canaries"]

    async def run(self) -> None:
        """Offers the version to canaries, looks at their figures, and widens or rolls back."""
        state = self._rollout.state
        if state == "stopping":  # whoever was asked to has died before
            self._lease.why = STOPPED
            self._stop()
            return
        if state == "running":
            await self._offer(list(self._canaries), stage=0)
            decision = await self._watch()
            if decision is None:
                self._stop()
                return
            self._tell(f"{decision.step}: {decision.why}")
            state = "widening" if decision.step == "widen" else "rolling_back"
            self._move(state, decision.why)
        reason = self._reason()
        if state == "widening":
            await self._offer(self._others(), stage=1)
        elif state == "rolling_back":
            await self._set(self._told("rolled_back", self._canaries), 0, "rolled_back")
        if self._lease.why:
            self._stop()
        else:
            self._move("done" if state == "widening" else "rolled_back", reason, is_end=True)

    async def _watch(self) -> Decision | None:
        """What the canaries' figures decide; None: somebody asked to stop."""
        said = ""
        while not self._lease.why:
            standing, decision = self._look()
            if decision.step != "wait":
                return decision
            active = [node for node, it in standing.items() if it.version == self._wish.version]
            line = f"{len(active)} of {len(self._canaries)} canaries run it; {decision.why}"
            if line != said:
                self._tell(said := line)
            await asyncio.sleep(LOOK_S)
        return None

    def _look(self) -> tuple[dict[str, store.Standing], Decision]:
        """The canaries that are up, and what is to be done about them."""
        with self._database.read() as connection:
            ready = store.ready_nodes(connection)
        decision = judge(self._database, self._rollout)
        here = {node: ready[node] for node in self._canaries if node in ready}
        active = [node for node, it in here.items() if it.version == self._wish.version]
        self._note(active, 0, "active", "")
        for node, it in here.items():
            if it.update.startswith(f"{self._wish.version} failed"):
                self._note([node], 0, "failed", it.update)
                return here, Decision("roll back", f"{node} does not run it: {it.update}")
        waited_s = (datetime.now(UTC) - self._rollout.started_at).total_seconds()
        if decision.step == "wait" and waited_s > self._wish.wait_s:
            return here, Decision("roll back", f"too little was seen in time: {decision.why}")
        return here, decision

    async def _offer(self, nodes: Sequence[str], stage: int) -> None:
        wanted = dict.fromkeys(nodes, self._wish.version)
        await self._set(self._told("sent", wanted), stage, "sent")

    async def _set(self, versions: Mapping[str, str], stage: int, state: str) -> None:
        """Tells nodes, some at a time, which version to run."""
        places = asyncio.Semaphore(AT_ONCE)

        async def tell(node: str, version: str) -> None:
            async with places:
                if not self._lease.why:
                    await self._tell_node(node, version, stage, state)

        async with asyncio.TaskGroup() as group:
            for node, version in versions.items():
                group.create_task(tell(node, version), name=f"rollout to {node}")

    async def _tell_node(self, node: str, version: str, stage: int, state: str) -> None:
        wanted = {"device.version": version, "device.source": self._wish.source}
        values: dict[str, str | None] = {k: json.dumps(v) for k, v in wanted.items()}
        why, what = "", state
        try:
            told = await configure(self._transport, NodeId(node), values, AWAY_S)
            if told.refused:
                what, why = "failed", "; ".join(f"{k} {v}" for k, v in told.refused.items())
        except FleetError as error:  # the broker keeps the wish for when it is back
            why = str(error)
        self._note([node], stage, what, why)
        self._tell(f"{node}: {what}{': ' + why if why else ''}")

    # ── What stands in the database ───────────────────────────────────────────────────────

    def _told(self, state: str, versions: Mapping[str, str]) -> dict[str, str]:
        """Those of the nodes that were not told before a restart."""
        with self._database.read() as connection:
            steps = store.nodes_of(connection, self._id)
        done = {state} if state == "rolled_back" else {"sent", "active", "failed", "rolled_back"}
        return {
            node: version
            for node, version in versions.items()
            if node not in steps or steps[node].state not in done
        }

    def _others(self) -> list[str]:
        with self._database.read() as connection:
            ready = store.ready_nodes(connection)
        return [node for node in ready if node not in self._canaries]

    def _note(self, nodes: Sequence[str], stage: int, state: str, reason: str) -> None:
        row = {"rollout_id": self._id, "stage": stage, "state": state, "reason": reason}
        with self._database.write() as connection:
            for node in nodes:
                now = datetime.now(UTC)
                store.note_node(connection, {**row, "node_id": node, "changed_at": now})

    def _reason(self) -> str:
        return _read(self._database, self._id).reason

    def _move(self, state: State, reason: str, *, is_end: bool = False) -> None:
        ended_at = datetime.now(UTC) if is_end else None
        with self._database.write() as connection:
            store.move(connection, self._id, state, reason, ended_at)

    def _stop(self) -> None:
        if not self._lease.is_lost:
            self._move("stopped", self._lease.why, is_end=True)
        self._tell(self._lease.why)


def judge(database: Database, rollout: Rollout) -> Decision:
    """What a rollout's figures say now; `decide` says how."""
    begun, wish = rollout.started_at, Wish.of(rollout)
    with database.read() as connection:
        canary = store.figures(connection, [wish.version], begun)
        rest = store.figures(connection, list(rollout.plan["previous"]), begun)
    return decide(canary, rest, wish.least)


def _read(database: Database, rollout_id: str) -> Rollout:
    with database.read() as connection:
        return store.rollout_of(connection, rollout_id, datetime.now(UTC))
