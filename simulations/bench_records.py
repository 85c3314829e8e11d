"""Records into the database, next to the same rows and upserts by bare `executemany`.

One run, one machine, one kind of database: the hub's path from bytes to commit, the same through
mosquitto, and the very statements that the hub sent, again on an empty database, straight to the
driver in the same batches. Ratios are what counts; and what a picture takes on disk over its
packed arrays.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import event, func, select, text
from sqlalchemy.engine import Engine

from cloud_hub import recording
from cloud_hub.notices import Notices
from cloud_hub.store.database import Database
from cloud_hub.store.records import Reported, store_batch
from cloud_hub.store.revision import migrate
from cloud_hub.store.tables import Base, GenerationRow
from fleet.errors import StoreError
from fleet.ids import BootId, GenerationId, ModelVersion, NodeId, new_id
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import GenerationRecord, Sampling
from fleet.transport.mqtt import connect
from simulations.bench_transport import mosquitto_program, run_mosquitto

NODES = 50
TOKENS = 256
STORED_S = 600.0
_AHEAD = 512  # records that are sent and not stored yet

Statement = tuple[str, Any, bool]  # SQL, parameters, many of them


@dataclass(frozen=True, slots=True)
class Ingestion:
    """One way into the database; `ratio` is its rate over the bare statements'."""

    subject: str
    records_per_s: float
    ratio: float
    disk_over_arrays: float  # 0 where it was not measured


def bench(url: str, *, records: int, batch: int) -> list[Ingestion]:
    """Measures the hub's path, the path through mosquitto where it is installed, and the bare one.

    `url` is an empty database; it is emptied again between the subjects.
    """
    messages = [(f"n{index % NODES}", record_at(index)) for index in range(records)]
    arrays = 3 * TOKENS * records
    with Database(url) as database:
        migrate(database)
        empty = database.size()
        with _captured() as statements:
            stored_s = _store(database, messages, batch, statements)
        disk = database.size() - empty
        _clear(database)
        bare_s = _bare(database, statements)
        _clear(database)
        found = [
            Ingestion("bare executemany", records / bare_s, 1.0, 0.0),
            Ingestion("hub, bytes to commit", records / stored_s, bare_s / stored_s, disk / arrays),
        ]
        if (program := mosquitto_program()) is not None:
            broker_s = asyncio.run(_through_broker(database, messages, batch, program))
            found.append(
                Ingestion("mosquitto, hub, commit", records / broker_s, bare_s / broker_s, 0.0)
            )
        return found


def _store(
    database: Database,
    messages: Sequence[tuple[str, GenerationRecord]],
    batch: int,
    statements: list[list[Statement]],
) -> float:
    payloads = [(node, encode(record)) for node, record in messages]
    began = time.perf_counter()
    for first in range(0, len(payloads), batch):
        statements.append([])
        reports = []
        for node, payload in payloads[first : first + batch]:
            record = decode(payload)
            assert isinstance(record, GenerationRecord)
            reports.append(Reported(NodeId(node), record, payload))
        store_batch(database, reports, [], datetime.now(UTC))
    return time.perf_counter() - began


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


def _bare(database: Database, batches: Sequence[Sequence[Statement]]) -> float:
    with contextlib.closing(database.driver()) as connection:
        cursor = connection.cursor()
        began = time.perf_counter()
        for statements in batches:
            if database.is_sqlite:
                cursor.execute("BEGIN IMMEDIATE")
            for statement, parameters, many in statements:
                (cursor.executemany if many else cursor.execute)(statement, parameters)
            connection.commit()
        return time.perf_counter() - began


async def _through_broker(
    database: Database,
    messages: Sequence[tuple[str, GenerationRecord]],
    batch: int,
    program: str,
) -> float:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(run_mosquitto(program))
        hub = await stack.enter_async_context(connect(broker, client_id="hub"))
        node = await stack.enter_async_context(connect(broker, client_id="node"))
        arrivals = await stack.enter_async_context(hub.subscribe(topics.RECORDS, qos=1, limit=512))
        work = recording.record(
            hub, arrivals, database, Notices(time.monotonic), limit=batch, wait_s=0.05
        )
        task = asyncio.create_task(work, name="recording")
        began = time.perf_counter()
        try:
            for first in range(0, len(messages), batch):
                part = messages[first : first + batch]
                await asyncio.gather(
                    *(
                        node.publish(topics.record(NodeId(name)), encode(record), qos=1)
                        for name, record in part
                    )
                )
                # Mosquitto drops what waits beyond 1,000: no more is out than that.
                await asyncio.to_thread(_wait_stored, database, first + len(part) - _AHEAD)
            await asyncio.to_thread(_wait_stored, database, len(messages))
            return time.perf_counter() - began
        finally:
            task.cancel()
            await asyncio.wait([task])


def _wait_stored(database: Database, count: int) -> None:
    deadline = time.monotonic() + STORED_S
    stored = select(func.count()).select_from(GenerationRow)
    while time.monotonic() < deadline:
        with database.read() as connection:
            if connection.execute(stored).scalar_one() >= count:
                return
        time.sleep(0.02)
    raise StoreError(f"after {STORED_S:g} s not all of {count} records are stored")


def _clear(database: Database) -> None:
    with database.write() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(text(f"DELETE FROM {table.name}"))  # noqa: S608 - our own names


def record_at(index: int) -> GenerationRecord:
    """A picture as they are: three quarters local, scores over two decades."""
    rng = np.random.default_rng(index)
    decisions = rng.choice([1, 2, 3], TOKENS, p=[0.75, 0.2, 0.05]).astype(np.uint8)
    decisions[:15] = 0
    counts = np.bincount(decisions, minlength=5).tolist()
    confidences = np.where(decisions == 1, 0, rng.integers(0, 256, TOKENS)).astype(np.uint8)
    return GenerationRecord(
        boot_id=BootId(f"boot-{index % NODES}"),
        sequence=index // NODES,
        generation_id=GenerationId(new_id()),
        created_at=1.7e9 + index,
        agent_version="0.1.0",
        device_version=ModelVersion("d" * 12),
        cloud_version=ModelVersion("c" * 12),
        caption_hash=f"{index:064x}",
        seed=index,
        sampling=Sampling(temperature=1.0, top_k=0, guidance=4.0),
        policy="spread",
        threshold=0.5,
        tokens=TOKENS,
        prefix=counts[0],
        local=counts[1],
        verified=counts[2] + counts[3],
        corrected=counts[3],
        unverified=0,
        wasted=int(rng.integers(20)),
        forwards=int(rng.integers(20, 60)),
        round_trips=int(rng.integers(10, 30)),
        retries=0,
        bytes_up=int(rng.integers(5_000, 15_000)),
        bytes_down=int(rng.integers(1_000, 4_000)),
        **{  # type: ignore[arg-type]
            name: float(rng.gamma(2))
            for name in ("duration_s", "device_s", "wait_s", "queue_s", "forward_s")
        },
        scores=np.clip(rng.normal(190, 18, TOKENS), 0, 255).astype(np.uint8).tobytes(),
        decisions=decisions.tobytes(),
        confidences=confidences.tobytes(),
    )
