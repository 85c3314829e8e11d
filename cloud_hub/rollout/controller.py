"""A rollout from its canaries to all devices or back, over the settings from afar."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from cloud_hub.desired import configure
from cloud_hub.rollout.plan import Decision, canaries, decide
from cloud_hub.store import rollouts as store
from cloud_hub.store.database import Database
from fleet.errors import FleetError, InvalidInputError
from fleet.ids import NodeId
from fleet.transport.base import Transport

LOOK_S = 5.0  # between two looks at the figures
AWAY_S = 30.0  # until a device that does not acknowledge is left to the broker


@dataclass(frozen=True, slots=True)
class Wish:
    """What is rolled out, and how carefully."""

    version: str
    source: str  # URL below which devices fetch it
    share: float = 0.1  # of the devices that are up, that are canaries
    least: int = 1000  # tokens judged, and checked, on the canaries before it is widened
    wait_s: float = 86_400.0  # for these tokens, or it is rolled back


class Rollout:
    """One rollout; whatever it does stands in the database."""

    def __init__(
        self,
        transport: Transport,
        database: Database,
        rollout_id: str,
        wish: Wish,
        tell: Callable[[str], None],
    ) -> None:
        self._transport, self._database, self._id = transport, database, rollout_id
        self._wish, self._tell = wish, tell

    async def run(self) -> Decision:
        """Offers the version to canaries, looks at their figures, and widens or rolls back.

        Cancelled, it leaves the canaries on the version, and says so in its row.

        Raises:
            InvalidInputError: No device is up.
            StoreError: The database cannot be used.
        """
        begun = datetime.now(UTC)
        with self._database.read() as connection:
            ready = store.ready_nodes(connection)
        if not ready:
            raise InvalidInputError("no device is up: a rollout needs some to try the version")
        chosen = canaries(list(ready), self._wish.version, self._wish.share)
        previous = sorted({node.version for node in ready.values()} - {self._wish.version})
        self._begin(begun, previous)
        try:
            await self._offer(chosen, stage=0)
            decision = await self._watch(begun, chosen, previous)
            self._tell(f"{decision.step}: {decision.why}")
            if decision.step == "widen":
                await self._offer([node for node in ready if node not in chosen], stage=1)
            else:
                before = {node: ready[node].version for node in chosen}
                await self._set(before, 0, "rolled_back")
        except BaseException:
            self._end("stopped", "its process ended: the canaries keep the version")
            raise
        self._end("done" if decision.step == "widen" else "rolled_back", decision.why)
        return decision

    async def _watch(self, begun: datetime, chosen: Sequence[str], previous: list[str]) -> Decision:
        said = ""
        while True:
            with self._database.read() as connection:
                ready = store.ready_nodes(connection)
                canary = store.figures(connection, [self._wish.version], begun)
                rest = store.figures(connection, previous, begun)
            here = {node: ready[node] for node in chosen if node in ready}
            active = [node for node, it in here.items() if it.version == self._wish.version]
            self._note(active, 0, "active", "")
            for node, it in here.items():
                if it.update.startswith(f"{self._wish.version} failed"):
                    self._note([node], 0, "failed", it.update)
                    return Decision("roll back", f"{node} does not run it: {it.update}")
            decision = decide(canary, rest, self._wish.least)
            if decision.step != "wait":
                return decision
            if (datetime.now(UTC) - begun).total_seconds() > self._wish.wait_s:
                return Decision("roll back", f"too little was seen in time: {decision.why}")
            line = f"{len(active)} of {len(chosen)} canaries run it; {decision.why}"
            if line != said:
                self._tell(said := line)
            await asyncio.sleep(LOOK_S)

    async def _offer(self, nodes: Sequence[str], stage: int) -> None:
        await self._set(dict.fromkeys(nodes, self._wish.version), stage, "sent")

    async def _set(self, versions: Mapping[str, str], stage: int, state: str) -> None:
        """Tells nodes, one after the other, which version to run."""
        for node, version in versions.items():
            wanted = {"device.version": version, "device.source": self._wish.source}
            values = {key: json.dumps(value) for key, value in wanted.items()}
            why, what = "", state
            try:
                told = await configure(self._transport, NodeId(node), {**values}, AWAY_S)
                if told.refused:
                    what, why = "failed", "; ".join(f"{k} {v}" for k, v in told.refused.items())
            except FleetError as error:  # the broker keeps the wish for when it is back
                why = str(error)
            self._note([node], stage, what, why)
            self._tell(f"{node}: {what}{': ' + why if why else ''}")

    # ── What stands in the database ───────────────────────────────────────────────────────

    def _begin(self, begun: datetime, previous: list[str]) -> None:
        row = {
            "rollout_id": self._id,
            "version": self._wish.version,
            "previous": previous[0] if len(previous) == 1 else "",
            "state": "running",
            "reason": "",
            "plan": asdict(self._wish),
            "started_at": begun,
            "ended_at": None,
        }
        with self._database.write() as connection:
            store.begin(connection, row)

    def _note(self, nodes: Sequence[str], stage: int, state: str, reason: str) -> None:
        row = {"rollout_id": self._id, "stage": stage, "state": state, "reason": reason}
        with self._database.write() as connection:
            for node in nodes:
                now = datetime.now(UTC)
                store.note_node(connection, {**row, "node_id": node, "changed_at": now})

    def _end(self, state: str, reason: str) -> None:
        with self._database.write() as connection:
            store.move(connection, self._id, state, reason, datetime.now(UTC))
