"""Calls: one future for each request id, retries of the same bytes, late answers dropped."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fleet.errors import RequestTimeout, TransportError
from fleet.ids import BootId, GenerationId, RequestId
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import Receipt, VerifyRequest, VerifyResponse
from fleet.transport.base import Inbound
from fleet.transport.calls import Calls, CallTimeout
from fleet.transport.memory import MemoryBroker, MemoryTransport

INBOX = "fleet/v1/d/node/rx/boot"
REQUESTS = "fleet/v1/d/node/rq/w0"


def request(number: int) -> VerifyRequest:
    return VerifyRequest(
        request_id=RequestId(f"r{number}"),
        boot_id=BootId("boot"),
        generation_id=GenerationId("g"),
        branch=0,
        start=number,
        tokens=b"\1\0",
        uncertain=b"\1",
        local=b"\0",
        deadline_s=1,
    )


def response(number: int) -> VerifyResponse:
    return VerifyResponse(
        request_id=RequestId(f"r{number}"),
        generation_id=GenerationId("g"),
        branch=0,
        accepted=1,
        next_token=number,
        confidences=b"\1",
        forwards=1,
        queue_s=0,
        forward_s=0,
    )


class Hub:
    """Reads requests; a test answers them as it likes."""

    def __init__(self, transport: MemoryTransport, requests: AsyncIterator[Inbound]) -> None:
        self.transport = transport
        self.requests = requests

    async def next_payload(self) -> bytes:
        return (await anext(self.requests)).payload

    async def answer(self, number: int, times: int = 1) -> None:
        for _ in range(times):
            await self.transport.publish(INBOX, encode(response(number)), qos=0)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def hub(broker: MemoryBroker) -> AsyncIterator[Hub]:
    transport = broker.connect("hub")
    async with transport.subscribe(REQUESTS, qos=0, limit=64) as requests:
        yield Hub(transport, requests)


@pytest.fixture
async def calls(broker: MemoryBroker) -> AsyncIterator[Calls]:
    async with Calls(broker.connect("node"), INBOX) as calls:
        yield calls


async def test_an_answer_finds_its_call_by_request_id(hub: Hub, calls: Calls) -> None:
    async with asyncio.TaskGroup() as tasks:
        both = [
            tasks.create_task(
                calls.call(REQUESTS, request(n), deadline_s=5, retry_after_s=5), name=f"call {n}"
            )
            for n in (1, 2)
        ]
        for _ in both:
            await hub.next_payload()
        await hub.answer(2)
        await hub.answer(1)

    assert [task.result()[0] for task in both] == [response(1), response(2)]
    assert calls.counters.answered == 2


async def test_a_retry_sends_the_same_bytes_and_is_counted(hub: Hub, calls: Calls) -> None:
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(
            calls.call(REQUESTS, request(1), deadline_s=5, retry_after_s=0.01), name="call"
        )
        first, second = await hub.next_payload(), await hub.next_payload()
        await hub.answer(1)

    _, stats = call.result()
    assert first == second == encode(request(1))
    assert stats.attempts >= 2
    assert stats.bytes_up == stats.attempts * len(first)
    assert stats.bytes_down == len(encode(response(1)))
    assert calls.counters.retries == stats.retries


async def test_late_and_second_answers_are_dropped_and_counted(hub: Hub, calls: Calls) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            calls.call(REQUESTS, request(1), deadline_s=5, retry_after_s=5), name="call"
        )
        await hub.next_payload()
        await hub.answer(1, times=3)
    await hub.answer(7)
    await asyncio.sleep(0.01)

    assert calls.counters.answered == 1
    assert calls.counters.late == 3


async def test_no_answer_before_the_deadline_is_a_timeout_with_its_cost(calls: Calls) -> None:
    with pytest.raises(RequestTimeout, match="VerifyRequest was not answered within") as caught:
        await calls.call(REQUESTS, request(1), deadline_s=0.05, retry_after_s=0.02)

    assert isinstance(caught.value, CallTimeout)
    assert caught.value.stats.attempts >= 1
    assert caught.value.stats.retries == calls.counters.retries
    assert calls.counters.unanswered == 1


async def test_a_link_that_stays_down_is_said_to_be_down(
    broker: MemoryBroker, calls: Calls
) -> None:
    broker.stop()

    with pytest.raises(TransportError, match="link to the broker was down") as caught:
        await calls.call(REQUESTS, request(1), deadline_s=0.05, retry_after_s=0.02)

    assert not isinstance(caught.value, RequestTimeout)


async def test_a_call_waits_for_the_link_within_its_deadline(
    broker: MemoryBroker, hub: Hub, calls: Calls
) -> None:
    broker.stop()
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(
            calls.call(REQUESTS, request(1), deadline_s=5, retry_after_s=0.05), name="call"
        )
        await asyncio.sleep(0.01)
        broker.start()
        await hub.next_payload()
        await hub.answer(1)

    assert call.result()[0] == response(1)


async def test_a_cancelled_call_leaves_nothing_behind(hub: Hub, calls: Calls) -> None:
    call = asyncio.create_task(
        calls.call(REQUESTS, request(1), deadline_s=5, retry_after_s=5), name="call"
    )
    await hub.next_payload()
    call.cancel()
    await asyncio.wait([call])
    await hub.answer(1)
    await asyncio.sleep(0.01)

    assert call.cancelled()
    assert calls.counters.late == 1


async def test_messages_without_a_request_id_wait_in_others(hub: Hub, calls: Calls) -> None:
    receipt = Receipt(boot_id=BootId("boot"), sequences=[1, 2])
    await hub.transport.publish(INBOX, encode(receipt), qos=1)

    assert await anext(calls.others()) == receipt


async def test_bytes_that_are_no_message_do_not_end_the_reader(hub: Hub, calls: Calls) -> None:
    await hub.transport.publish(INBOX, b"\x09 not ours", qos=0)
    receipt = Receipt(boot_id=BootId("boot"), sequences=[1])
    await hub.transport.publish(INBOX, encode(receipt), qos=0)

    assert await anext(calls.others()) == receipt
    assert calls.counters.bad == 1


async def test_the_request_arrives_as_it_was_sent(hub: Hub, calls: Calls) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            calls.call(REQUESTS, request(3), deadline_s=5, retry_after_s=5), name="call"
        )
        arrived = decode(await hub.next_payload())
        await hub.answer(3)

    assert arrived == request(3)
