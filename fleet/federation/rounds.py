"""The loop over rounds: ours, since Flower's has no quorum, no resume and no gate."""

import time
from dataclasses import dataclass, replace
from typing import Any

from flwr.serverapp import Grid

from fleet.federation.collect import NOBODY, Observer, Way
from fleet.federation.ledger import Commit, Ledger
from fleet.federation.plan import Plan
from fleet.federation.round import Round
from fleet.federation.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """A run of rounds on one grid, as far as its ledger has not come yet."""

    grid: Grid
    task: Task
    plan: Plan
    ledger: Ledger
    observer: Observer = NOBODY

    def run(self) -> Commit | None:
        """Runs what is missing of the plan's rounds; the last round.

        Raises:
            Stopped: The observer said so; the next run takes up the round that was opened.
        """
        while (number := self._done + 1) <= self.plan.rounds:
            self._run_one(number)
        return self.ledger.last()

    @property
    def _done(self) -> int:
        last = self.ledger.last()
        return last.number if last else 0

    def _run_one(self, number: int) -> None:
        begin = time.monotonic()
        way = Way(self.grid, self.observer)
        current = Round(way, self.task, self.plan, self.ledger.last(), number)
        opening = self.ledger.opened()
        if opening is None:
            opening = current.open()
            self.ledger.open(opening)
        commit = current.run(opening)
        self.ledger.commit(
            replace(commit, participants=self._counted(commit), duration_s=time.monotonic() - begin)
        )

    def _counted(self, commit: Commit) -> Any:
        """The participants by node, with the bytes that their grid has counted."""
        traffic: dict[int, tuple[int, int]] = getattr(self.grid, "traffic", {})
        counted = []
        for each in sorted(commit.participants, key=lambda each: each.node):
            down, up = traffic.pop(each.node, (0, 0))
            counted.append(replace(each, bytes_down=down, bytes_up=up))
        return tuple(counted)
