"""Tasks and answers of rounds: asked again until answered, and answered only by who was asked."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cloud_hub.rounds.exchange import Exchange, number_of
from fleet.federation.bodies import CHUNK_BYTES, split
from fleet.federation.codec import digest
from fleet.ids import BootId, ModelVersion, NodeId, RequestId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import NodeStatus, RoundChunk, RoundReply, RoundTask
from fleet.transport.memory import MemoryBroker, MemoryTransport

NODE, OTHER = NodeId("node-1"), NodeId("node-2")
BODY = b"x" * (CHUNK_BYTES + 5)


def task(name: str = "m1", node: NodeId = NODE) -> RoundTask:
    return RoundTask(
        message_id=RequestId(name),
        run=1,
        number=number_of(node),
        kind="train",
        body=digest(BODY),
        chunks=2,
        deadline_s=9.0,
    )


def answer(name: str = "m1", content: bytes = b"yes", error: str = "") -> list[bytes]:
    parts = split(content)
    return [
        encode(
            RoundReply(
                message_id=RequestId(name),
                body=digest(content),
                index=index,
                chunks=len(parts),
                data=part,
                error=error,
            )
        )
        for index, part in enumerate(parts)
    ]


async def show(
    link: MemoryTransport, node: NodeId, training: str = "ready", boot: str = "b"
) -> None:
    status = NodeStatus(
        boot_id=BootId(boot),
        state="ready",
        agent_version="1",
        device_version=ModelVersion("d"),
        family="toy",
        facts={"training": training},
        at=time.time(),
    )
    await link.publish(topics.node_state(node), encode(status), qos=1, retain=True)


@asynccontextmanager
async def exchange(
    repeat_s: float = 60.0,
) -> AsyncIterator[tuple[MemoryBroker, Exchange, MemoryTransport]]:
    broker = MemoryBroker()
    async with broker.connect("hub") as hub, broker.connect("nodes") as nodes:
        made = Exchange(hub, repeat_s)
        running = asyncio.create_task(made.run())
        for _ in range(5):
            await asyncio.sleep(0)
        yield broker, made, nodes
        running.cancel()
        await asyncio.wait([running])


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_only_nodes_that_say_they_can_train_are_asked() -> None:
    async with exchange() as (_, made, nodes):
        await show(nodes, NODE)
        await show(nodes, OTHER, "lacks torch: install the extra federation")
        await settle()

        assert made.nodes == {number_of(NODE): NODE}


async def test_a_body_is_published_once_for_all_and_withdrawn_with_its_phase() -> None:
    async with exchange() as (_, made, nodes):
        await made.ask([task("a"), task("b", OTHER)], [BODY])
        async with nodes.subscribe(topics.round_body(digest(BODY)), qos=1, limit=8) as chunks:
            found = [decode((await anext(chunks)).payload) for _ in range(2)]
        await made.ask([], [])
        async with nodes.subscribe(topics.round_body(digest(BODY)), qos=1, limit=8) as chunks:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(chunks)

    assert all(isinstance(chunk, RoundChunk) for chunk in found)
    assert b"".join(chunk.data for chunk in found) == BODY


async def test_a_node_that_comes_back_is_asked_again() -> None:
    async with exchange() as (_, made, nodes):
        await show(nodes, NODE)
        await settle()
        async with nodes.subscribe(topics.round_tasks(NODE), qos=1, limit=8) as tasks:
            await made.ask([task()], [BODY])
            await anext(tasks)
            await show(nodes, NODE, boot="another")
            async with asyncio.timeout(5):
                again = decode((await anext(tasks)).payload)

    assert again == task()


async def test_a_broker_that_forgot_everything_is_told_again() -> None:
    async with exchange() as (broker, made, nodes):
        await show(nodes, NODE)
        await settle()
        await made.ask([task()], [BODY])
        async with nodes.subscribe(topics.round_tasks(NODE), qos=1, limit=8) as tasks:
            broker.stop()
            await settle()
            broker.start()
            async with asyncio.timeout(5):
                again = decode((await anext(tasks)).payload)
        async with nodes.subscribe(topics.round_body(digest(BODY)), qos=1, limit=8) as chunks:
            async with asyncio.timeout(5):
                await anext(chunks)

    assert again == task()


async def test_what_is_not_answered_is_asked_again_after_a_while() -> None:
    async with exchange(repeat_s=0.02) as (_, made, nodes):
        await show(nodes, NODE)
        await settle()
        async with nodes.subscribe(topics.round_tasks(NODE), qos=1, limit=8) as tasks:
            await made.ask([task()], [BODY])
            async with asyncio.timeout(5):
                for _ in range(3):
                    await anext(tasks)
            for payload in answer():
                await nodes.publish(topics.round_reply(NODE), payload, qos=1)
            await settle()

        assert made.answers["m1"].content == b"yes"


async def test_an_answer_in_parts_counts_when_whole() -> None:
    async with exchange() as (_, made, nodes):
        await made.ask([task()], [BODY])
        first, second = answer(content=BODY)
        await nodes.publish(topics.round_reply(NODE), second, qos=1)
        await settle()
        assert not made.answers
        await nodes.publish(topics.round_reply(NODE), first, qos=1)
        await settle()

        assert made.answers["m1"].content == BODY
        assert made.traffic[number_of(NODE)][1] > len(BODY)


async def test_nobody_answers_for_another_node() -> None:
    async with exchange() as (_, made, nodes):
        await made.ask([task()], [BODY])
        for payload in answer():
            await nodes.publish(topics.round_reply(OTHER), payload, qos=1)
        await settle()

        assert (made.answers, made.refused) == ({}, 1)


async def test_parts_that_do_not_give_what_was_named_are_dropped() -> None:
    async with exchange() as (_, made, nodes):
        await made.ask([task()], [BODY])
        wrong = RoundReply(message_id=RequestId("m1"), body=digest(b"another"), data=b"yes")
        await nodes.publish(topics.round_reply(NODE), encode(wrong), qos=1)
        await settle()
        assert not made.answers
        for payload in answer():
            await nodes.publish(topics.round_reply(NODE), payload, qos=1)
        await settle()

        assert made.answers["m1"].content == b"yes"
