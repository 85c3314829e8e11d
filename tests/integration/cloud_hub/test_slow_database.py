"""The database hangs at full load: the broker holds back, memory stays bounded, nothing is lost.

CIAR_PAUSE_S makes the pause longer than the few seconds of every day: 300 is the long form.
"""

import asyncio
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import psycopg
import pytest
from sqlalchemy import func, select

from cloud_hub import recording
from cloud_hub.notices import Notices
from cloud_hub.store.database import Database
from cloud_hub.store.revision import migrate
from cloud_hub.store.tables import GenerationRow, SumRow
from fleet.ids import BootId, NodeId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import Receipt
from fleet.transport.base import Transport
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from tests.services import Mosquitto
from tests.unit.cloud_hub.records import record

PAUSE_S = float(os.environ.get("CIAR_PAUSE_S", "6"))
NODE, BOOT = NodeId("n1"), BootId("boot")
QUEUE, RECEIVE_MAXIMUM = 64, 256
MIB = 1 << 20

pytestmark = [
    pytest.mark.alone,
    pytest.mark.broker,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(120 + 3 * PAUSE_S),
]


class Sender:
    """A node that sends new records all the time, and unreceipted ones again, as an outbox does."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.sent, self.receipted = 0, set[int]()
        self.stops = False

    async def listen(self) -> None:
        async with self.transport.subscribe(topics.inbox(NODE, BOOT), qos=0, limit=4096) as inbox:
            async for inbound in inbox:
                message = decode(inbound.payload)
                if isinstance(message, Receipt):
                    self.receipted |= set(message.sequences)
                inbound.ack()

    async def send(self) -> None:
        while not self.stops:
            await self._publish(range(self.sent, self.sent + 20))
            self.sent += 20
            await asyncio.sleep(0.05)
        while missing := set(range(self.sent)) - self.receipted:
            await self._publish(sorted(missing)[:200])
            await asyncio.sleep(0.5)

    async def _publish(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            payload = encode(record(boot_id=BOOT, sequence=number, generation_id=f"g{number}"))
            await self.transport.publish(topics.record(NODE), payload, qos=1)


@asynccontextmanager
async def recording_hub(broker: BrokerSettings, database: Database) -> AsyncIterator[None]:
    """A hub that only records."""
    async with (
        connect(broker, client_id="hub") as transport,
        transport.subscribe(topics.RECORDS, qos=1, limit=QUEUE) as arrivals,
    ):
        work = recording.record(
            transport, arrivals, database, Notices(time.monotonic), limit=32, wait_s=0.05
        )
        task = asyncio.create_task(work, name="recording")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_nothing_is_lost_while_the_database_hangs(
    mosquitto: Mosquitto, postgres_url: str
) -> None:
    broker = BrokerSettings(host="127.0.0.1", port=mosquitto.port)
    with Database(postgres_url) as database:
        migrate(database)
        async with (
            connect(broker, client_id="n1") as transport,
            recording_hub(broker, database),
        ):
            sender = Sender(transport)
            listening = asyncio.create_task(sender.listen())
            sending = asyncio.create_task(sender.send())
            await _until(lambda: len(sender.receipted) > 40)

            paused = await asyncio.to_thread(_signal, postgres_url, signal.SIGSTOP, [])
            try:
                before, stored = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sender.sent
                await asyncio.sleep(PAUSE_S)
                await _until(lambda: sender.sent > stored + 2 * RECEIVE_MAXIMUM)
                grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            finally:
                await asyncio.to_thread(_signal, postgres_url, signal.SIGCONT, paused)
            sender.stops = True
            await sending
            listening.cancel()

        assert sender.sent > stored + 2 * RECEIVE_MAXIMUM  # more than the hub may hold was sent
        assert grown * 1024 < 64 * MIB
        with database.read() as connection:
            rows = connection.execute(select(GenerationRow.sequence)).scalars().all()
            counted = connection.execute(select(func.sum(SumRow.pictures))).scalar_one()
        assert sorted(rows) == list(range(sender.sent))
        assert int(counted) == sender.sent


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.05)


def _signal(url: str, number: signal.Signals, pids: list[int]) -> list[int]:
    """Stops or wakes what serves this database; which processes that is, if they are not named."""
    if not pids:
        plain = url.replace("+psycopg", "")
        with psycopg.connect(plain) as connection:
            query = (
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            pids = [row[0] for row in connection.execute(query)]
        assert pids
    for pid in pids:
        os.kill(pid, number)
    return pids
