"""A simulated link: order, delay, bandwidth, loss and outages, repeatable by seed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import TransportError
from fleet.transport.base import QoS
from fleet.transport.lane import HEADER_BYTES, Direction
from fleet.transport.link import PROFILES, LinkProfile, Outage, SimulatedLink
from fleet.transport.memory import MemoryBroker

NEAR = LinkProfile("near", 1000, 1000, round_trip_s=0.02, jitter_s=0.0)


@asynccontextmanager
async def link_of(profile: LinkProfile, broker: MemoryBroker) -> AsyncIterator[SimulatedLink]:
    async with SimulatedLink(broker.connect("node"), profile, Random(1)) as link:
        yield link


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1 << 18), st.sampled_from([0, 1]))),
    st.sampled_from(sorted(PROFILES)),
    st.integers(0, 99),
)
def test_arrivals_keep_their_order_and_take_at_least_their_time(
    sent: list[tuple[float, int, QoS]], name: str, seed: int
) -> None:
    profile = PROFILES[name]
    half_s = profile.round_trip_s / 2
    direction = Direction(profile.up_mbps, half_s, profile.jitter_s, profile.loss, Random(seed))
    now, last = 0.0, 0.0
    for pause_s, size, qos in sent:
        now += pause_s
        arrival = direction.arrival(now, size, qos)

        assert arrival is not None or not qos
        if arrival is not None:
            assert arrival >= last
            assert arrival >= now + half_s + size * 8 / (profile.up_mbps * 1e6)
            last = arrival


def test_bandwidth_is_shared_by_what_is_sent_together() -> None:
    direction = Direction(8.0, 0.1, 0.0, 0.0, Random(1))
    size = 1_000_000 - HEADER_BYTES

    arrivals = [direction.arrival(0.0, size, 0) for _ in range(3)]

    assert arrivals == pytest.approx([1.1, 2.1, 3.1])


def test_a_seed_repeats() -> None:
    draws = [
        [Direction(10, 0.01, 0.01, 0.3, Random(7)).arrival(0, n, 0) for n in range(9)]
        for _ in range(2)
    ]

    assert draws[0] == draws[1]


async def test_a_round_trip_takes_the_profiles_time() -> None:
    broker = MemoryBroker()
    loop = asyncio.get_running_loop()
    async with link_of(NEAR, broker) as link, link.subscribe("a", qos=0, limit=9) as arrivals:
        begin = loop.time()
        await link.publish("a", b"1", qos=0)
        sent_s = loop.time() - begin
        await anext(arrivals)
        back_s = loop.time() - begin

    assert back_s >= 0.02
    assert sent_s < back_s


async def test_a_lost_qos_0_payload_is_gone_and_a_lost_qos_1_payload_is_late() -> None:
    broker = MemoryBroker()
    lossy = LinkProfile("lossy", 1000, 1000, round_trip_s=0.002, jitter_s=0.0, loss=1.0)
    hub = broker.connect("hub")
    async with hub.subscribe("a", qos=1, limit=9) as arrivals, link_of(lossy, broker) as link:
        await link.publish("a", b"gone", qos=0)
        await link.publish("a", b"late", qos=1)

        assert (await anext(arrivals)).payload == b"late"
        assert link.counters.lost_up == 1


async def test_an_outage_refuses_publishes_and_ends() -> None:
    broker = MemoryBroker()
    profile = LinkProfile("gaps", 1000, 1000, 0.002, 0.0, outages=(Outage(0.0, 0.05),))
    async with link_of(profile, broker) as link:
        await asyncio.wait_for(link.wait_connected(False), 5)
        with pytest.raises(TransportError, match="the link to the broker is down"):
            await link.publish("a", b"1", qos=0)
        await asyncio.wait_for(link.wait_connected(), 5)
        await link.publish("a", b"1", qos=1)


async def test_what_is_on_its_way_when_the_network_goes_is_lost_or_refused() -> None:
    broker = MemoryBroker()
    hub = broker.connect("hub")
    async with hub.subscribe("a", qos=1, limit=9) as arrivals, link_of(NEAR, broker) as link:
        await link.publish("a", b"lost", qos=0)
        waiting = asyncio.create_task(link.publish("a", b"refused", qos=1), name="publish")
        await asyncio.sleep(0)
        link.cut()
        with pytest.raises(TransportError, match="went down"):
            await waiting
        link.mend()
        await link.publish("a", b"kept", qos=1)

        assert (await anext(arrivals)).payload == b"kept"
        assert link.counters.lost_up == 1


async def test_a_qos_1_payload_for_the_device_waits_for_the_end_of_an_outage() -> None:
    broker = MemoryBroker()
    hub = broker.connect("hub")
    async with link_of(NEAR, broker) as link, link.subscribe("a", qos=1, limit=9) as arrivals:
        link.cut()
        await hub.publish("a", b"lost", qos=0)
        await hub.publish("a", b"kept", qos=1)
        await asyncio.sleep(0.05)
        link.mend()

        assert (await anext(arrivals)).payload == b"kept"
        assert link.counters.lost_down == 1


async def test_a_loss_of_the_inner_link_shows() -> None:
    broker = MemoryBroker()
    async with link_of(NEAR, broker) as link:
        waiting = asyncio.create_task(link.wait_connected(False), name="wait")
        await asyncio.sleep(0)
        broker.stop()
        await asyncio.wait_for(waiting, 5)

        assert not link.is_connected


async def test_closing_the_link_answers_whoever_waits() -> None:
    broker = MemoryBroker()
    slow = LinkProfile("slow", 1000, 1000, round_trip_s=60, jitter_s=0.0)
    link = SimulatedLink(broker.connect("node"), slow, Random(1))
    async with link:
        waiting = asyncio.create_task(link.publish("a", b"1", qos=1), name="publish")
        await asyncio.sleep(0.01)

    with pytest.raises(TransportError, match="the link was closed"):
        await waiting


async def test_a_black_hole_looks_like_a_link_and_lets_nothing_through() -> None:
    broker = MemoryBroker()
    async with link_of(NEAR, broker) as link, link.subscribe("a", qos=1, limit=9) as arrivals:
        link.cut(silently=True)
        await link.publish("a", b"lost", qos=0)
        waiting = asyncio.create_task(link.publish("a", b"late", qos=1))
        await asyncio.sleep(0.1)
        assert link.is_connected
        assert not waiting.done()

        link.mend()
        await waiting
        arrived = await anext(arrivals)

    assert arrived.payload == b"late"


async def test_a_stretched_link_takes_so_many_times_as_long() -> None:
    loop = asyncio.get_running_loop()
    async with link_of(NEAR, MemoryBroker()) as link, link.subscribe("a", qos=0, limit=9) as inbox:
        link.stretch(10)
        begin = loop.time()
        await link.publish("a", b"1", qos=0)
        await anext(inbox)

        assert loop.time() - begin >= 0.2


async def _payloads(limit: int, count: int) -> tuple[list[str], set[bytes]]:
    """What became of payloads of 8 bytes on a link of that limit: told, and arrived."""
    broker, told = MemoryBroker(), list[str]()
    async with (
        link_of(NEAR, broker) as link,
        broker.connect("hub") as hub,
        hub.subscribe("t", qos=1, limit=100) as arrivals,
    ):
        link.limit(limit)
        for number in range(count):
            await link.wait_connected()
            try:
                await link.publish("t", b"payload%d" % number, qos=1)
            except TransportError as error:
                told.append(str(error).removeprefix("the link to the broker "))
            else:
                told.append("")
        found = set()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                async for inbound in arrivals:
                    found.add(inbound.payload)
                    inbound.ack()
    return told, found


_PAYLOAD, _ACK = "broke in the midst of a payload", "broke before its acknowledgement"


@pytest.mark.parametrize(
    ("limit", "told"),
    [  # 9 bytes up and 4 of acknowledgement each
        (12, [_ACK, _ACK]),
        (13, ["", _PAYLOAD]),
        (21, ["", _PAYLOAD]),
        (22, ["", _ACK]),
        (25, ["", _ACK]),
        (26, ["", ""]),
    ],
)
async def test_a_limit_falls_into_a_payload_or_into_its_acknowledgement(
    limit: int, told: list[str]
) -> None:
    said, found = await _payloads(limit, 2)

    assert said == told
    assert found == {b"payload%d" % place for place, each in enumerate(told) if each != _PAYLOAD}


async def test_a_link_without_a_limit_any_more_holds() -> None:
    async with link_of(NEAR, MemoryBroker()) as link:
        link.limit(1)
        link.limit(None)

        await link.publish("t", b"more than a byte", qos=1)
