"""One node at a thousand times its rate, in virtual time: what it does to the others."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cloud_hub.engine.requests import Full, Judged, Opened
from simulations.world.clock import run_in_virtual_time
from tests.unit.cloud_hub.bench import LIMITS, Bench, key
from tests.unit.cloud_hub.toy import backlog, opening, run_of

# As the shipped family's forwards on one core: see docs/limits.md.
FORWARD_S, TOKEN_S = 0.006, 0.0004
BEGIN_S, END_S = 1.0, 9.0  # about 1,900 verdicts: a p99 of fewer moves by itself
PART = run_of([1, 2, 3, 4, 5])


@dataclass
class Crowd:
    """Nodes that each ask at a rate of their own, and one that asks a thousand times as often."""

    nodes: int
    rate: float  # requests of one node in a second
    flood: float = 0.0  # times the rate

    async def latencies(self) -> list[float]:
        """Seconds from asking to the verdict, of the quiet nodes."""
        limits = replace(LIMITS, jobs=1024, node_jobs=64, batch_tokens=256, batch_spans=64)
        slots = self.nodes + 32
        bench = Bench(
            slots=slots,
            node_slots=slots // 4,
            keep_s=2.0,
            limits=limits,
            forward_s=FORWARD_S,
            token_s=TOKEN_S,
        )
        found: list[float] = []
        async with bench.running(), asyncio.TaskGroup() as group:
            for index in range(self.nodes):
                group.create_task(self._quiet(bench, index, found), name=f"quiet {index}")
            if self.flood:
                group.create_task(self._noisy(bench), name="noisy")
        return found

    async def _quiet(self, bench: Bench, index: int, found: list[float]) -> None:
        rng = np.random.default_rng(index)
        node = f"quiet{index}"
        while not isinstance(await bench.ask(opening(node=node)), Opened):
            await asyncio.sleep(0.1)
        while (now := bench.clock()) < END_S:
            answer = await bench.ask(backlog(3, PART, [False] * 5, node=node))
            assert isinstance(answer, Judged), answer
            if now > BEGIN_S:
                found.append(bench.clock() - now)
            await asyncio.sleep(rng.exponential(1 / self.rate))

    async def _noisy(self, bench: Bench) -> None:
        async def drop(_: object) -> None:
            return None

        asked = 0
        while bench.clock() < END_S:
            name = f"g{asked % 40}"
            request = backlog(3, PART, [False] * 5, node="noisy", generation=name)
            if asked < 40 or not isinstance(bench.engine.submit(request, drop), Full):
                bench.engine.submit(opening(node="noisy", generation=name), drop)
            asked += 1
            await asyncio.sleep(1 / (self.rate * self.flood))


def p99(found: list[float]) -> float:
    return float(np.quantile(found, 0.99))


@pytest.mark.timeout(240)
def test_a_flood_of_one_node_moves_the_p99_of_the_others_by_less_than_a_tenth() -> None:
    quiet = run_in_virtual_time(Crowd(64, 4.0).latencies())
    flooded = run_in_virtual_time(Crowd(64, 4.0, flood=1000).latencies())

    assert len(flooded) > 1500
    assert p99(flooded) < 1.1 * p99(quiet)


async def test_a_node_owns_no_more_slots_than_its_part_and_gives_up_its_own_first() -> None:
    async with Bench(slots=4, node_slots=2, keep_s=1.0).running() as bench:
        for name in "ab":
            await bench.ask(opening(node="many", generation=name))
        refused = await bench.ask(opening(node="many", generation="c"))
        bench.now += 1
        await bench.ask(opening(node="other", generation="d"))
        taken = await bench.ask(opening(node="many", generation="c"))

        assert isinstance(refused, Full)
        assert isinstance(taken, Opened)
        assert len(bench.sessions) == 3
        assert bench.sessions.find(key("many", "a"), bench.now) is None
