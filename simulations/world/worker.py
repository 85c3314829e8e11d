"""One worker of a world's hub, through all its lives: the real `serve` on a stand-in's forwards."""

import asyncio
from contextlib import AbstractContextManager
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
from simulations.world.lives import ended, until_ready


@dataclass(slots=True)
class Stoppable:
    """Whether the database can be written, in all lives of its hub."""

    is_stopped: bool = False


class WorldDatabase(Database):
    """A real database that a scenario may stop."""

    def __init__(self, url: str, state: Stoppable) -> None:
        """As `Database`."""
        super().__init__(url)
        self._state = state

    def write(self) -> AbstractContextManager[Any]:  # type: ignore[override]  # of a Connection
        """See `Database.write`."""
        if self._state.is_stopped:
            raise StoreError("the database cannot be written: the scenario has stopped it")
        return super().write()


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
    storage: Stoppable = field(default_factory=Stoppable)
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
                await serve(settings, transport, hub, ready=ready.set)
        finally:
            hub.close()

    @property
    def _client(self) -> str:
        return f"hub-{self.number}"

    def _say(self, state: str) -> None:
        runner = self.runner
        so_far = {"forwards": runner.forwards, "spans": runner.spans, "tokens": runner.tokens}
        self.history.say("worker", worker=self.number, state=state, life=self._lives, **so_far)
