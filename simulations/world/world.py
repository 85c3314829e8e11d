"""A world: a scenario's fleet and hub on one event loop with a clock that jumps.

Agents, calls, links, engine, scheduler, recording and database are the field's own code; models
are stand-ins that take the time of a measured profile, the broker is the one in memory. The
machine under them is ours, so a seed repeats all of it (docs/simulation.md).
"""

import asyncio
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from cloud_hub.store import revision
from cloud_hub.store.database import Database
from fleet.errors import OutputError
from fleet.models.bundle import CLOUD_FOLDER, VOCABULARY, reference_path
from fleet.models.caption import CaptionVocabulary
from fleet.transport.memory import MemoryBroker
from simulations.history.events import History
from simulations.history.tally import Tally
from simulations.profile import Profile
from simulations.scenarios.faults import BadRollout
from simulations.scenarios.population import Resident, population, struck
from simulations.scenarios.scenario import Scenario
from simulations.stand_in import StandInDevice, StandInRunner
from simulations.world.clock import VirtualTimeLoop
from simulations.world.faults import Trouble, bring
from simulations.world.fleet import live
from simulations.world.learning import Learning
from simulations.world.machine import Machine, machine
from simulations.world.node import Node
from simulations.world.versions import Rollouts, StandInStore, devices_by_version
from simulations.world.worker import Storage, Worker, WorldDatabase

EPOCH_S = 1_767_600_000.0  # 5 January 2026, 8:00 UTC
_SPARE_THREADS = 8
EVENTS, DATABASE = "events.jsonl", "hub.db"

OnTick = Callable[[Tally], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What to simulate, and where its results go."""

    scenario: Scenario
    seed: int
    out: Path
    profile: Profile
    epoch_s: float = EPOCH_S
    tick_s: float = 10.0


def simulate(order: Order, on_tick: OnTick = lambda _: None) -> Tally:
    """Runs a world to its end; leaves `events.jsonl` and `hub.db` in the order's folder.

    `on_tick` is told how things are every `tick_s` seconds of the world.

    Raises:
        OutputError: The folder cannot be written.
    """
    loop = VirtualTimeLoop()
    with machine(loop, order.seed, order.epoch_s) as computer:
        return _run(order, loop, computer, on_tick)


def rehearse(order: Order, on_tick: OnTick = lambda _: None) -> Tally:
    """The same on this machine's own clock, with threads: what the virtual clock is held against.

    Raises:
        OutputError: The folder cannot be written.
    """
    loop = asyncio.new_event_loop()
    # A step or a forward is a thread asleep: each device and worker needs one.
    threads = order.scenario.devices + order.scenario.hub.workers + _SPARE_THREADS
    loop.set_default_executor(ThreadPoolExecutor(threads))
    return _run(order, loop, Machine(loop, time.time()), on_tick)


def _run(
    order: Order, loop: asyncio.AbstractEventLoop, computer: Machine, on_tick: OnTick
) -> Tally:
    tally, begins_at = Tally(), loop.time()
    with (
        _results(order.out) as scratch,
        (order.out / EVENTS).open("w", encoding="utf-8") as stream,
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        history = History(stream, lambda: loop.time() - begins_at)
        history.listeners.append(tally.add)
        world = _World(order, scratch, history, computer)
        runner.run(world.run(lambda: on_tick(tally)))
    return tally


def device_of(order: Order, speed: float = 1.0) -> StandInDevice:
    """The stand-in on an order's devices of that speed."""
    profile, pair = order.profile, partial(order.profile.pair, device_speed=speed, worker_speed=1)
    return StandInDevice(
        pair(),
        order.scenario.grid,
        vocabulary(),
        {style: pair(style=style) for style in profile.styles},
    )


class _World:
    def __init__(self, order: Order, folder: Path, history: History, computer: Machine) -> None:
        self._order = order
        self._history = history
        scenario, profile, broker = order.scenario, order.profile, MemoryBroker()
        storage = Storage()
        self._workers = [
            Worker(
                number=number,
                runner=StandInRunner(
                    profile.pair(device_speed=1, worker_speed=scenario.hub.speed),
                    slots=scenario.hub.slots,
                    positions=scenario.grid * scenario.grid,
                ),
                vocabulary=vocabulary(),
                engine=scenario.hub.engine,
                folder=folder,
                broker=broker,
                history=history,
                records=number == 0,
                storage=storage,
            )
            for number in range(scenario.hub.workers)
        ]
        devices = {kind.speed: device_of(order, kind.speed) for kind in scenario.kinds}
        settings = {
            "generation": scenario.generation,
            "node": {"send_captions": True},
            "training": {"take_part": False},
        }

        stores = {
            speed: StandInStore(devices_by_version(scenario, device))
            for speed, device in devices.items()
        }
        is_rolled_out = any(isinstance(fault, BadRollout) for fault in scenario.faults)

        def node(resident: Resident) -> Node:
            speed = resident.kind.speed
            made = Node(resident, devices[speed], settings, folder, broker, history, order.seed)
            made.versions = stores[speed].versions if is_rolled_out else None
            return made

        self._nodes = [node(resident) for resident in population(scenario, order.seed)]
        self._database = WorldDatabase(f"sqlite:///{folder / DATABASE}", storage)
        self._learning = (
            Learning(scenario.rounds, self._nodes, self._database, folder, history)
            if scenario.rounds
            else None
        )
        self._trouble = Trouble(
            broker=broker,
            workers=self._workers,
            storage=storage,
            machine=computer,
            rollouts=Rollouts(broker, self._database, history),
            learning=self._learning,
        )

    async def run(self, on_tick: Callable[[], None]) -> None:
        """Starts all, lets it live until it is at rest, stops all."""
        scenario = self._order.scenario
        self._history.say("world", scenario=scenario.name, seed=self._order.seed)
        ticking = asyncio.create_task(self._tick(on_tick), name="ticks")
        lives: list[Worker | Node] = [*self._workers, *self._nodes]
        for one in lives:
            await one.start()
        gc.freeze()  # a thousand agents stay: no garbage is looked for among them
        await live(self._nodes, [*self._faults(), *self._rounds()], self._history)
        gc.unfreeze()
        for one in reversed(lives):
            await one.stop()
        self._database.close()
        ticking.cancel()
        await asyncio.wait([ticking])
        on_tick()

    def _faults(self) -> Iterator[Coroutine[Any, Any, None]]:
        for index, fault in enumerate(self._order.scenario.faults):
            places = sorted(struck(self._order.scenario, self._order.seed, index))
            nodes = [self._nodes[place] for place in places]
            yield bring(fault, nodes, self._trouble.in_force(index, fault, nodes), self._history)

    def _rounds(self) -> Iterator[Coroutine[Any, Any, None]]:
        if self._learning is not None:
            yield self._learning.run()

    async def _tick(self, on_tick: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._order.tick_s)
            on_tick()


@contextmanager
def _results(out: Path) -> Iterator[Path]:
    """A folder for states, in memory where there is one; its database is kept in `out`.

    A simulation's own disk need not survive a power cut, and half a million commits do not fit
    on a slow one.
    """
    memory = Path("/dev/shm")  # noqa: S108  # Linux's; elsewhere the usual temporary folder
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            scratch = Path(folder)
            (scratch / DATABASE).write_bytes(_empty_database())
            yield scratch
            shutil.copyfile(scratch / DATABASE, out / DATABASE)
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error


@cache
def vocabulary() -> CaptionVocabulary:
    """The words of the shipped family, so that a scenario's captions serve both clocks."""
    return CaptionVocabulary.load(reference_path() / CLOUD_FOLDER / VOCABULARY)


@cache
def _empty_database() -> bytes:
    """The file of a new database, made once: migrations take longer than a small world."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / DATABASE
        with Database(f"sqlite:///{file}") as database:
            revision.prepare(database, create=True)
        return file.read_bytes()
