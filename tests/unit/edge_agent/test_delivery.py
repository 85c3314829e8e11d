"""Records reach the hub once it is there, and leave the spool on its receipt only."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from edge_agent.delivery import Delivery
from edge_agent.outbox import Limits, Outbox
from fleet.ids import NodeId
from fleet.protocol import topics
from fleet.transport.calls import Calls
from fleet.transport.memory import MemoryBroker
from tests.unit.edge_agent.toy_cloud import BOOT, NODE, toy_cloud
from tests.unit.edge_agent.toy_record import toy_record

LIMITS = Limits(1 << 20, 100)


@asynccontextmanager
async def delivering(
    broker: MemoryBroker, path: Path, *, resend_s: float = 0.05
) -> AsyncIterator[Delivery]:
    transport = broker.connect("node")
    with Outbox(path, LIMITS) as outbox:
        delivery = Delivery(outbox, transport, NodeId(NODE), resend_s)
        async with Calls(transport, topics.inbox(NODE, BOOT)) as calls:
            task = asyncio.create_task(delivery.run(calls, BOOT))
            try:
                yield delivery
            finally:
                task.cancel()
                await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # the hub of a test has no event to wait for
            await asyncio.sleep(0.01)


async def test_a_record_is_delivered_and_dropped_on_its_receipt(tmp_path: Path) -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as cloud, delivering(broker, tmp_path / "o") as delivery:
        assert "" == await delivery.put(toy_record())
        assert await delivery.flush(5)

    assert [1] == [record.sequence for record in cloud.records]


async def test_without_a_receipt_the_record_is_sent_again_and_kept(tmp_path: Path) -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as cloud, delivering(broker, tmp_path / "o") as delivery:
        cloud.gives_receipts = False
        await delivery.put(toy_record())
        await until(lambda: cloud.deliveries >= 3)

        assert 1 == (await delivery.spool()).records
        assert not await delivery.flush(0.05)
        cloud.gives_receipts = True
        assert await delivery.flush(5)


async def test_records_of_a_former_boot_get_their_receipts_too(tmp_path: Path) -> None:
    broker = MemoryBroker()
    with Outbox(tmp_path / "o", LIMITS) as outbox:
        outbox.put(toy_record(boot="former"))
        outbox.put(toy_record(boot="former"))

    async with toy_cloud(broker) as cloud, delivering(broker, tmp_path / "o") as delivery:
        await delivery.put(toy_record(boot=BOOT))
        assert await delivery.flush(5)

    found = {(record.boot_id, record.sequence) for record in cloud.records}
    assert {("former", 1), ("former", 2), (BOOT, 1)} == found


async def test_what_was_made_without_a_broker_is_sent_when_it_is_there(tmp_path: Path) -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as cloud, delivering(broker, tmp_path / "o") as delivery:
        broker.stop()
        for _ in range(40):
            await delivery.put(toy_record())
        assert 40 == (await delivery.spool()).records
        broker.start()
        assert await delivery.flush(5)

    assert 40 == len(cloud.records)


async def test_a_disk_that_takes_nothing_is_a_sentence_and_the_record_follows_later(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker()
    transport = broker.connect("node")

    with Outbox(tmp_path / "o", LIMITS) as outbox:
        delivery = Delivery(outbox, transport, NodeId(NODE), 0.05)
        outbox._db.execute("PRAGMA query_only = ON")
        sentence = await delivery.put(toy_record())
        outbox._db.execute("PRAGMA query_only = OFF")

        async with toy_cloud(broker) as cloud, Calls(transport, topics.inbox(NODE, BOOT)) as calls:
            task = asyncio.create_task(delivery.run(calls, BOOT))
            assert await delivery.flush(5)
            task.cancel()
            await asyncio.wait([task])

    assert "pictures are made all the same" in sentence
    assert 1 == len(cloud.records)
