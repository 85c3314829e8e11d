"""Records into the database, next to the same rows and upserts by bare `executemany`.

One run, one machine, one kind of database: the hub's path from bytes to commit, the same through
mosquitto with receipts, and the very statements that the hub sent, again on an empty database,
straight to the driver in the same batches. Ratios are what counts: of rates, and of this process's
processor time, which a busy machine bends less (a PostgreSQL's own is not in it). And what a
picture takes on disk over its packed arrays.
"""

import asyncio
import contextlib
import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.engine import Engine

from cloud_hub import recording
from cloud_hub.notices import Notices
from cloud_hub.store.database import Database
from cloud_hub.store.records import store_batch
from cloud_hub.store.revision import migrate
from cloud_hub.store.tables import Base, SumMarkRow
from fleet.ids import NodeId
from fleet.protocol import topics
from fleet.protocol.codec import encode
from fleet.protocol.messages import GenerationRecord
from fleet.transport.base import Inbound
from fleet.transport.mqtt import connect
from simulations.bench_transport import mosquitto_program, run_mosquitto
from simulations.processes import program as program_of
from simulations.sample_records import TOKENS, node_of, record_at

STORED_S = 600.0
_AHEAD = 512  # records that are sent and have no receipt yet

Statement = tuple[str, Any, bool]  # SQL, parameters, many of them


@dataclass(frozen=True, slots=True)
class Ingestion:
    """One way into the database.

    Attributes:
        ratio: Its rate over the bare statements'.
        processor: Their processor time over its own.
        disk_over_arrays: 0 where it was not measured.
    """

    subject: str
    records_per_s: float
    ratio: float
    processor: float
    disk_over_arrays: float


@dataclass(frozen=True, slots=True)
class _Took:
    """Seconds on the clock, and of the processor in this process."""

    wall_s: float
    processor_s: float


def bench(url: str, *, records: int, batch: int) -> list[Ingestion]:
    """Measures the hub's path, the path through mosquitto where it is installed, and the bare one.

    `url` is an empty database; it is emptied again between the subjects.
    """
    payloads = [(node_of(index), encode(record_at(index))) for index in range(records)]
    arrays = 3 * TOKENS * records
    with ExitStack() as stack:
        database = stack.enter_context(Database(url))
        migrate(database)
        _store(database, payloads[:batch], batch, [])  # the first makes the statements
        _clear(database)
        empty = database.size()
        gc.freeze()  # as the hub does when it is ready
        stack.callback(gc.unfreeze)
        with _captured() as statements:
            stored = _store(database, payloads, batch, statements)
        disk = (database.size() - empty) / arrays
        _clear(database)
        bare = _bare(database, statements)
        _clear(database)
        found = [
            _ingestion("bare executemany", records, bare, bare),
            _ingestion("hub, bytes to commit", records, stored, bare, disk),
        ]
        if (program := mosquitto_program()) is not None:
            through = asyncio.run(_through_broker(database, records, batch, program))
            found.append(_ingestion("mosquitto, hub, commit, receipts", records, through, bare))
        return found


def _ingestion(
    subject: str, records: int, took: _Took, bare: _Took, disk: float = 0.0
) -> Ingestion:
    return Ingestion(
        subject,
        records / took.wall_s,
        bare.wall_s / took.wall_s,
        bare.processor_s / took.processor_s,
        disk,
    )


@contextmanager
def _timed() -> Iterator[list[_Took]]:
    """What the block took, when it is over."""
    took: list[_Took] = []
    wall, processor = time.perf_counter(), time.process_time()
    yield took
    took.append(_Took(time.perf_counter() - wall, time.process_time() - processor))


def _store(
    database: Database,
    payloads: Sequence[tuple[NodeId, bytes]],
    batch: int,
    statements: list[list[Statement]],
) -> _Took:
    arrivals = [
        Inbound(topics.record(node), data, False, lambda: None, 1) for node, data in payloads
    ]
    with _timed() as took:
        for first in range(0, len(arrivals), batch):
            statements.append([])
            reading = recording.read_batch(arrivals[first : first + batch])
            store_batch(database, reading.reports, reading.rejected, datetime.now(UTC))
    return took[0]


@contextmanager
def _captured() -> Iterator[list[list[Statement]]]:
    """Every statement that writes, by batch."""
    batches: list[list[Statement]] = []

    def keep(*call: Any) -> None:
        _, _, statement, parameters, _, many = call
        if batches and statement.startswith(("INSERT", "UPDATE")):
            batches[-1].append((statement, parameters, many))

    event.listen(Engine, "before_cursor_execute", keep)
    try:
        yield batches
    finally:
        event.remove(Engine, "before_cursor_execute", keep)


def _bare(database: Database, batches: Sequence[Sequence[Statement]]) -> _Took:
    with contextlib.closing(database.driver()) as connection:
        cursor = connection.cursor()
        with _timed() as took:
            for statements in batches:
                if database.is_sqlite:
                    cursor.execute("BEGIN IMMEDIATE")
                for statement, parameters, many in statements:
                    (cursor.executemany if many else cursor.execute)(statement, parameters)
                connection.commit()
        return took[0]


async def _through_broker(database: Database, records: int, batch: int, program: str) -> _Took:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(run_mosquitto(program))
        hub = await stack.enter_async_context(connect(broker, client_id="hub"))
        arrivals = await stack.enter_async_context(hub.subscribe(topics.RECORDS, qos=1, limit=512))
        left = _Left(records)
        notices = Notices(time.monotonic)
        work = recording.record(
            hub, arrivals, database, notices, limit=batch, wait_s=0.05, stored=left.one
        )
        task = asyncio.create_task(work, name="recording")
        stack.push_async_callback(_cancel, task)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ciar-bench-"))
        order = ["simulations.record_sender", str(broker.port), str(records), str(_AHEAD)]
        sender = stack.enter_context(program_of("sender", order, {}, Path(folder) / "sender.log"))
        deadline = time.monotonic() + STORED_S
        await asyncio.to_thread(
            sender.wait_for, "become ready", lambda: sender.says("ready\n"), deadline
        )
        with _timed() as took:
            await hub.publish("bench/go", b"go", qos=1)
            async with asyncio.timeout(STORED_S):
                await left.none.wait()
        return took[0]


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class _Left:
    """Records that are not stored yet."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.none = asyncio.Event()

    def one(self, _node: NodeId, _record: GenerationRecord) -> None:
        """Takes one off."""
        self._count -= 1
        if not self._count:
            self.none.set()


def _clear(database: Database) -> None:
    """Empties every table but the marks; numbers of rows begin anew: statements are sent again."""
    kept = SumMarkRow.__tablename__  # a migration writes its rows, and nothing else does
    tables = [t.name for t in reversed(Base.metadata.sorted_tables) if t.name != kept]
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY"))
            return
        for table in tables:
            connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608 - our own names
