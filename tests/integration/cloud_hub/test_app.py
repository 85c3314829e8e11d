"""The hub over a broker: every message in, every answer and row out."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from sqlalchemy import func, select, text

from cloud_hub.store.checks import checked_pictures
from cloud_hub.store.database import Database
from cloud_hub.store.tables import CheckSumRow, GenerationRow, NodeRow, RejectedRecordRow
from fleet.ids import NodeId, WorkerId
from fleet.protocol import topics
from fleet.protocol.arrays import pack_mask, unpack_tokens
from fleet.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from fleet.protocol.messages import (
    GenerationClose,
    GenerationOpened,
    HubStatus,
    Receipt,
    Refused,
    VerifyResponse,
)
from fleet.transport.memory import MemoryBroker
from tests.integration.cloud_hub.hub import PATIENCE_S, WORKER, joined, make_hub, serving
from tests.unit.cloud_hub.records import open_message, record, status, verify_message
from tests.unit.cloud_hub.toy import VOCAB, ToyRunner, cloud_only

NODE = NodeId("n1")
OPEN = topics.open_request(NODE)
PINNED = topics.pinned_request(NODE, WORKER)
RECORD = topics.record(NODE)
CAPTION = (3, 2)  # "red heart"


@pytest.fixture
def lite(tmp_path: Path) -> Any:
    from cloud_hub.store.revision import migrate

    with Database(f"sqlite:///{tmp_path / 'hub.db'}") as database:
        migrate(database)
        yield database


def count(database: Database, row: type[Any]) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(row)).scalar_one())


async def until_stored(database: Database, row: type[Any], wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(count, database, row) < wanted:
            await asyncio.sleep(0.01)


async def test_a_picture_is_opened_and_verified(lite: Database) -> None:
    right = cloud_only(CAPTION, 7)
    broker = MemoryBroker()
    async with serving(broker, make_hub(lite)), joined(broker) as device:
        opened = await device.ask(OPEN, open_message())
        verified = await device.ask(PINNED, verify_message(right[3:6]))
        await device.send(
            PINNED, GenerationClose(boot_id=record().boot_id, generation_id=record().generation_id)
        )
        gone = await device.ask(PINNED, verify_message(right[6:8], start=6, request_id="r3"))

    assert isinstance(opened, GenerationOpened)
    assert unpack_tokens(opened.tokens).tolist() == right[:3]
    assert (opened.worker, opened.cloud_version) == (WORKER, "v1")
    assert isinstance(verified, VerifyResponse)
    assert (verified.accepted, verified.next_token) == (3, right[6])
    assert isinstance(gone, Refused)
    assert gone.reason == "unknown_session"


async def test_what_is_not_ours_is_counted_logged_once_and_never_ends_the_hub(
    lite: Database,
) -> None:
    junk = [b"", b"\1junk", b"\7" + encode(open_message())[1:], b"\1" * (MAX_MESSAGE_BYTES + 1)]
    broker = MemoryBroker()
    with structlog.testing.capture_logs() as logs:
        async with serving(broker, make_hub(lite)), joined(broker) as device:
            for payload in [*junk, encode(status())]:
                await device.send(OPEN, payload)
                await device.send(PINNED, payload)
            await device.send(OPEN, open_message(boot_id="#"))
            answer = await device.ask(OPEN, open_message())

    assert isinstance(answer, GenerationOpened)
    dropped = [line for line in logs if line["event"] == "request dropped"]
    assert len(dropped) == 1
    assert logs[-1]["notices"]["request dropped"] == 11


async def test_a_refusal_says_what_is_wrong(lite: Database) -> None:
    broker = MemoryBroker()
    async with serving(broker, make_hub(lite)), joined(broker) as device:
        answer = await device.ask(OPEN, open_message(caption="blue heart"))

    assert isinstance(answer, Refused)
    assert "'blue'" in answer.detail


async def test_a_failing_model_is_busy_and_works_again(lite: Database) -> None:
    broker = MemoryBroker()
    async with serving(broker, make_hub(lite, ToyRunner(fails=1))), joined(broker) as device:
        first = await device.ask(OPEN, open_message())
        second = await device.ask(OPEN, open_message())

    assert [type(answer).__name__ for answer in (first, second)] == ["Busy", "GenerationOpened"]


async def test_a_record_is_stored_receipted_and_its_repeat_too(lite: Database) -> None:
    broker = MemoryBroker()
    async with serving(broker, make_hub(lite)), joined(broker) as device:
        receipts = []
        for sequence in (1, 2, 2):
            await device.send(RECORD, record(sequence=sequence), qos=1)
            receipts.append(await device.read())

    assert [receipt.sequences for receipt in receipts if isinstance(receipt, Receipt)] == [
        [1],
        [2],
        [2],
    ]
    assert count(lite, GenerationRow) == 2


async def test_a_poison_record_is_set_aside_receipted_and_blocks_nothing(lite: Database) -> None:
    unreadable = encode(record(sequence=4)).replace(b"caption_hash", b"caption_hush")
    broker = MemoryBroker()
    async with serving(broker, make_hub(lite)), joined(broker) as device:
        for payload in (b"junk", encode(record(sequence=3, seed=1 << 63)), unreadable):
            await device.send(RECORD, payload, qos=1)
        await device.send("fleet/v1/d/Not-A-Node/record", record(), qos=1)
        await device.send(RECORD, record(sequence=5), qos=1)
        await until_stored(lite, GenerationRow, 1)
        receipted: list[int] = []
        while 5 not in receipted:
            receipt = await device.read()
            assert isinstance(receipt, Receipt)
            receipted += receipt.sequences

    assert sorted(receipted) == [3, 4, 5]
    assert count(lite, RejectedRecordRow) == 4
    assert count(lite, GenerationRow) == 1


async def test_nothing_is_acknowledged_before_its_commit(lite: Database) -> None:
    broker = MemoryBroker()
    with lite.write() as connection:
        connection.execute(text("ALTER TABLE generation RENAME TO away"))
    hub = make_hub(lite)
    async with joined(broker) as device:
        async with serving(broker, hub) as transport:
            await device.send(RECORD, record(sequence=1), qos=1)
            await asyncio.sleep(0.3)  # it fails, and tries again
            broker.cut(transport.client_id)  # as SIGKILL would
        with lite.write() as connection:
            connection.execute(text("ALTER TABLE away RENAME TO generation"))
        async with serving(broker, hub):
            await device.send(RECORD, record(sequence=1), qos=1)  # what an outbox does
            receipt = await device.read()

    assert isinstance(receipt, Receipt)
    assert count(lite, GenerationRow) == 1


async def test_records_wait_for_the_database_and_are_all_there_afterwards(lite: Database) -> None:
    broker = MemoryBroker()
    with lite.write() as connection:
        connection.execute(text("ALTER TABLE generation RENAME TO away"))
    async with serving(broker, make_hub(lite)), joined(broker) as device:
        for sequence in range(20):
            await device.send(RECORD, record(sequence=sequence), qos=1)
        verified = await device.ask(OPEN, open_message())
        with lite.write() as connection:
            connection.execute(text("ALTER TABLE away RENAME TO generation"))
        await until_stored(lite, GenerationRow, 20)

    assert isinstance(verified, GenerationOpened)


async def test_the_hub_says_that_it_is_there_and_that_it_leaves(lite: Database) -> None:
    broker = MemoryBroker()
    async with (
        broker.connect("watcher") as watcher,
        watcher.subscribe(topics.HUB_STATES, qos=1, limit=9) as states,
    ):
        async with serving(broker, make_hub(lite)) as transport:
            born = decode((await anext(states)).payload)
            await asyncio.sleep(0.01)  # the hub looks at its link again
            broker.cut(transport.client_id)
            lost = decode((await anext(states)).payload)
            await asyncio.sleep(0.01)
            broker.mend(transport.client_id)
            back = decode((await anext(states)).payload)
        left = decode((await anext(states)).payload)

    words: list[HubStatus] = [born, lost, back, left]
    assert [word.up for word in words] == [True, False, True, False]
    assert {word.worker for word in words} == {WORKER}


async def test_workers_speak_for_themselves_and_clear_what_the_gone_ones_left(
    lite: Database,
) -> None:
    broker = MemoryBroker()
    first, second = make_hub(lite), make_hub(None, worker="w2")
    async with (
        serving(broker, first),
        serving(broker, second) as other,
        broker.connect("watcher") as watcher,
        watcher.subscribe(topics.HUB_STATES, qos=1, limit=9) as states,
    ):
        seen = {(await anext(states)).topic for _ in range(2)}
        broker.cut(other.client_id)
        lost = await anext(states)
        async with serving(broker, make_hub(None, worker="w3")):
            later = [await anext(states) for _ in range(2)]

    assert seen == {topics.hub_state(WORKER), topics.hub_state(WorkerId("w2"))}
    assert (lost.topic, decode(lost.payload).up) == (topics.hub_state(WorkerId("w2")), False)
    assert {(each.topic, bool(each.payload)) for each in later} == {
        (topics.hub_state(WorkerId("w2")), False),
        (topics.hub_state(WorkerId("w3")), True),
    }


async def test_a_worker_without_a_database_verifies_and_leaves_records_to_others(
    lite: Database,
) -> None:
    right = cloud_only(CAPTION, 7)
    broker = MemoryBroker()
    async with (
        serving(broker, make_hub(None, worker="w2")),
        joined(broker) as device,
    ):
        opened = await device.ask(OPEN, open_message())
        verified = await device.ask(
            topics.pinned_request(NODE, WorkerId("w2")), verify_message(right[3:6])
        )
        await device.send(RECORD, record(), qos=1)
        async with serving(broker, make_hub(lite)):
            await device.send(RECORD, record(), qos=1)
            await until_stored(lite, GenerationRow, 1)

    assert isinstance(opened, GenerationOpened)
    assert opened.worker == "w2"
    assert isinstance(verified, VerifyResponse)


async def test_nodes_are_known_by_their_retained_states(lite: Database) -> None:
    broker = MemoryBroker()
    async with joined(broker) as device:
        await device.transport.publish(
            topics.node_state(NODE), encode(status()), qos=1, retain=True
        )
        async with serving(broker, make_hub(lite)):
            await until_stored(lite, NodeRow, 1)
            await device.transport.publish(topics.node_state(NODE), b"", qos=1, retain=True)
            await device.transport.publish(topics.node_state(NodeId("n2")), b"junk", qos=1)
            await device.transport.publish(
                topics.node_state(NodeId("n3")), encode(status()), qos=1, retain=True
            )
            await until_stored(lite, NodeRow, 2)

    with lite.read() as connection:
        found = connection.execute(select(NodeRow.node_id, NodeRow.state)).all()
    assert {tuple(row) for row in found} == {("n1", "ready"), ("n3", "ready")}


async def test_what_the_device_accepted_alone_is_spot_checked(lite: Database) -> None:
    right = cloud_only(CAPTION, 7)
    drafts = [right[3], (right[4] + 1) % VOCAB, right[5]]
    backlog = verify_message(
        drafts,
        uncertain=pack_mask(np.zeros(3, bool)),
        local=pack_mask(np.ones(3, bool)),
    )
    scored = {"tokens": 6, "scores": bytes(6), "decisions": bytes([0, 0, 0, 1, 1, 1])}
    broker = MemoryBroker()
    async with serving(broker, make_hub(lite), check_share=1.0), joined(broker) as device:
        await device.ask(OPEN, open_message())
        await device.ask(PINNED, backlog)
        await device.send(RECORD, record(**scored), qos=1)
        await until_stored(lite, CheckSumRow, 1)
        with lite.read() as connection:
            (found,) = checked_pictures(connection)

    assert found.positions.tolist() == [3, 4, 5]
    assert found.matches.tolist()[:2] == [True, False]
    assert found.harms.tolist()[:2] == [0.0, 2.0]
