"""One worker of a world's hub, through all its lives: the real `serve` on a stand-in's forwards."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloud_hub.app import serve
from cloud_hub.settings import EngineSettings, HubSettings
from cloud_hub.store.database import Database
from fleet.errors import StoreError
from fleet.ids import BootId, WorkerId, new_id
from fleet.models.caption import CaptionVocabulary
from fleet.transport.memory import MemoryBroker
from simulations.history.events import History
from simulations.stand_in import StandInRunner, worker_of
from simulations.world.gate import Gate
from simulations.world.lives import ended, until_ready

_PRESENT, _ALL = 1, 1_073_741_823  # SQLite raises the first to what there is


@dataclass(slots=True)
class Storage:
    """Whether the database can be written, and its disk has room, in all lives of its hub."""

    is_stopped: bool = False
    is_full: bool = False


class WorldDatabase(Database):
    """A real database that a scenario may stop, or leave without room."""

    def __init__(self, url: str, state: Storage) -> None:
        """As `Database`."""
        super().__init__(url)
        self._state = state

    @contextmanager
    def write(self) -> Iterator[Any]:  # a Connection
        """See `Database.write`."""
        if self._state.is_stopped:
            raise StoreError("the database cannot be written: the scenario has stopped it")
        with super().write() as connection:
            if self._state.is_full:
                _refuse(connection)
            yield connection


def _refuse(connection: Any) -> None:
    """Fails as SQLite does on a full disk, by its own words: a page is wanted that is not there."""
    free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
    for _ in range(free):  # each gives one page back
        connection.exec_driver_sql("PRAGMA incremental_vacuum")
    connection.exec_driver_sql(f"PRAGMA max_page_count = {_PRESENT}")
    try:
        connection.exec_driver_sql("CREATE TABLE without_room AS SELECT zeroblob(100000)")
    finally:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {_ALL}")


@dataclass(slots=True)
class Worker:
    """A worker that is started, killed, started again and stopped."""

    number: int
    runner: StandInRunner
    vocabulary: CaptionVocabulary
    engine: EngineSettings
    folder: Path
    broker: MemoryBroker
    history: History
    records: bool
    storage: Storage = field(default_factory=Storage)
    _gate: Gate | None = None
    _lives: int = 0
    _life: "asyncio.Task[None] | None" = None

    async def start(self) -> None:
        """Returns when it listens; does nothing while it lives."""
        if self._life is not None:
            return
        ready = asyncio.Event()
        name = f"worker {self.number} life {self._lives}"
        self._life = asyncio.create_task(self._live(ready), name=name)
        await until_ready(self._life, ready)
        self._say("started")

    async def kill(self) -> None:
        """As SIGKILL: no goodbye; what the database has committed stays."""
        life, self._life = self._life, None
        if life is None:
            return
        self._say("killed")
        self.broker.cut(self._client)
        await ended(life)
        self._lives += 1

    def stall(self) -> None:
        """As SIGSTOP: it hears and says nothing."""
        if self._gate is not None:
            self._gate.close()

    def go_on(self) -> None:
        """As SIGCONT: what it missed comes at once, and so does what it had to say."""
        if self._gate is not None:
            self._gate.open()

    async def stop(self) -> None:
        """As SIGTERM."""
        life, self._life = self._life, None
        if life is not None:
            await ended(life)
            self._say("stopped")

    async def _live(self, ready: asyncio.Event) -> None:
        settings = HubSettings(data_dir=self.folder, engine=self.engine)
        database = WorldDatabase(settings.store_url, self.storage) if self.records else None
        name = WorkerId(f"w-{self.number}-{self._lives}")
        hub = worker_of(self.runner, self.vocabulary, name, BootId(new_id()), database)
        try:
            async with self.broker.connect(self._client, hub.identity.will) as transport:
                self._gate = Gate(transport)
                await serve(settings, self._gate, hub, ready=ready.set)
        finally:
            hub.close()

    @property
    def _client(self) -> str:
        return f"hub-{self.number}"

    def _say(self, state: str) -> None:
        runner = self.runner
        so_far = {"forwards": runner.forwards, "spans": runner.spans, "tokens": runner.tokens}
        self.history.say("worker", worker=self.number, state=state, life=self._lives, **so_far)
