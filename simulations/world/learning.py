"""Federated rounds over a world's devices: the hub's own loop, gate and ledger, in virtual time.

Flower's apps run in the loop's own thread; what training computes takes no time. A device that is
dead is not asked, and one that dies meanwhile does not answer.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloud_hub.store import rounds as store
from cloud_hub.store.database import Database
from cloud_hub.store.rounds import DatabaseLedger, Run
from fleet.errors import StoreError
from fleet.federation.client_app import app
from fleet.federation.local_grid import Answer, LocalGrid
from fleet.federation.plan import Plan
from fleet.federation.rounds import Rounds
from fleet.federation.task import Task
from fleet.ids import NodeId
from simulations.history.events import History
from simulations.learners import RANK, Inline, learner, stand_in_head
from simulations.scenarios import scenario as scenarios
from simulations.scenarios.faults import Poison
from simulations.world.node import Node
from simulations.world.poison import is_update, poisoned

_RUN = "rounds"
_AGAIN_S = 2.0  # where the database was away


class Learning:
    """The rounds of a world, and the poison that faults put into some of its devices."""

    def __init__(
        self,
        wanted: scenarios.Rounds,
        nodes: Sequence[Node],
        database: Database,
        folder: Path,
        history: History,
    ) -> None:
        self.poison: dict[NodeId, Poison] = {}  # by device, while a fault lasts
        self._wanted, self._nodes, self._history = wanted, nodes, history
        self._database = database
        self._head = stand_in_head()
        self._number = 0
        self._ledger = DatabaseLedger(database, _RUN, lambda node: nodes[node].resident.node)
        samples = {
            number: learner(folder / "learners" / node.resident.node, number)
            for number, node in enumerate(nodes)
        }
        self._grid = _Grid(self, samples)

    async def run(self) -> None:
        """Runs all rounds, each at its time."""
        await asyncio.sleep(self._wanted.at_s - self._history.now())
        await self._until_stored(self._begin)
        for number in range(1, self._wanted.count + 1):
            self._number = number
            self._history.say("round", number=number, state="begins")
            outcome = await self._until_stored(self._round)
            self._history.say("round", number=number, state="ends", outcome=outcome)
            if number < self._wanted.count:
                await asyncio.sleep(self._wanted.every_s)

    def alive(self) -> list[int]:
        """The devices that may be asked, by number."""
        return [number for number, node in enumerate(self._nodes) if node.is_alive]

    def sent(self, number: int, answer: Answer) -> Answer | None:
        """What a device sends where it has an answer."""
        node = self._nodes[number]
        if not node.is_alive:
            return None
        how = self.poison.get(node.resident.node)
        if how is None or not is_update(answer):
            return answer
        self._history.say("poisoned", node=node.resident.node, round=self._number, how=how)
        return poisoned(answer, how)

    async def _until_stored(self, work: Callable[[], str]) -> str:
        while True:
            try:
                return await asyncio.to_thread(work)
            except StoreError:  # what was begun is taken up again, as after a crash
                await asyncio.sleep(_AGAIN_S)

    def _plan(self) -> Plan:
        return Plan(rounds=self._number, rank=RANK, steps=2, least_samples=50, deadline_s=30.0)

    def _begin(self) -> str:
        now = datetime.now(UTC)
        run = Run(
            run_id=_RUN,
            state="running",
            started_by="the scenario",
            reason="",
            plan=asdict(Plan(rounds=self._wanted.count)),
            base_version=self._head.version,
            head_version=self._head.version,
            progress={},
            created_at=now,
            ended_at=None,
        )
        with self._database.write() as connection:
            store.begin(connection, run, self._head.to_bytes())
        return ""

    def _round(self) -> str:
        commit = Rounds(self._grid, Task(self._head), self._plan(), self._ledger).run()
        assert commit is not None
        if self._number == self._wanted.count:
            with self._database.write() as connection:
                store.set_state(connection, _RUN, "done", "", datetime.now(UTC))
        return commit.outcome


class _Grid(LocalGrid):
    """A grid of those devices that live."""

    def __init__(self, learning: Learning, samples: dict[int, dict[str, Any]]) -> None:
        super().__init__(app, samples, fault=learning.sent, pool=Inline())
        self._learning = learning

    def get_node_ids(self) -> Iterable[int]:
        """See `LocalGrid`."""
        return self._learning.alive()
