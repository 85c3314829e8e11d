"""What every transport promises: in memory, behind a simulated link, and over two brokers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fleet.errors import TransportError
from fleet.transport.base import Inbound, QoS, Will
from fleet.transport.link import LinkProfile
from tests.contract.rigs import EmbeddedRig, MemoryRig, MosquittoRig, Rig
from tests.services import Mosquitto

NEAR = LinkProfile("near", 100, 100, round_trip_s=0.004, jitter_s=0.002)
SOON_S = 8.0  # the deadline of what should happen at once


BROKERS = ["embedded", pytest.param("mosquitto", marks=pytest.mark.broker)]


@asynccontextmanager
async def rig_of(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    match kind:
        case "memory" | "link":
            memory = MemoryRig(NEAR if kind == "link" else None)
            yield memory
            await memory.close()
        case "embedded":
            embedded = EmbeddedRig()
            await embedded.start()
            yield embedded
            await embedded.close()
            await embedded.stop()
        case _:
            server: Mosquitto = request.getfixturevalue("mosquitto")
            mosquitto = MosquittoRig(server)
            yield mosquitto
            await mosquitto.close()


@pytest.fixture(params=["memory", "link", *BROKERS])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig_of(request.param, request) as made:
        yield made


@pytest.fixture(params=BROKERS)
async def mqtt_rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Links in memory do not fight over a client id."""
    async with rig_of(request.param, request) as made:
        yield made


async def take(arrivals: AsyncIterator[Inbound], count: int, *, ack: bool = True) -> list[Inbound]:
    """The next `count` payloads, acknowledged."""
    taken = []
    async with asyncio.timeout(SOON_S):
        for _ in range(count):
            inbound = await anext(arrivals)
            if ack:
                inbound.ack()
            taken.append(inbound)
    return taken


async def nothing_more(arrivals: AsyncIterator[Inbound]) -> bool:
    """Whether nothing arrives for a while."""
    try:
        async with asyncio.timeout(0.2):
            await anext(arrivals)
    except TimeoutError:
        return True
    return False


async def until(condition: Callable[[], bool]) -> None:
    """Returns when `condition` holds."""
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.01)


def payloads(taken: list[Inbound]) -> list[bytes]:
    return [inbound.payload for inbound in taken]


@pytest.mark.parametrize("qos", [0, 1])
async def test_payloads_arrive_in_order(rig: Rig, qos: QoS) -> None:
    hub, node = await rig.connect("hub"), await rig.connect("node")
    sent = [b"%d" % number for number in range(50)]

    async with hub.subscribe("d/node/record", qos=qos, limit=100) as arrivals:
        for payload in sent:
            await node.publish("d/node/record", payload, qos=qos, expiry_s=30)
        taken = await take(arrivals, 50)

    assert payloads(taken) == sent
    assert {inbound.topic for inbound in taken} == {"d/node/record"}
    assert not any(inbound.retained for inbound in taken)


async def test_filters_select_by_level(rig: Rig) -> None:
    hub = await rig.connect("hub")

    async with (
        hub.subscribe("d/+/rq/any", qos=0, limit=9) as one_level,
        hub.subscribe("b/#", qos=0, limit=9) as all_levels,
    ):
        for topic in ("d/n1/rq/any", "d/n1/rq/w0", "d/n1/x/rq/any", "b", "b/1/2", "c/1"):
            await hub.publish(topic, topic.encode(), qos=0)

        assert payloads(await take(one_level, 1)) == [b"d/n1/rq/any"]
        assert payloads(await take(all_levels, 2)) == [b"b", b"b/1/2"]
        assert await nothing_more(one_level)
        assert await nothing_more(all_levels)


async def test_a_retained_payload_waits_for_whoever_comes(rig: Rig) -> None:
    hub = await rig.connect("hub")
    await hub.publish("hub/state", b"up", qos=1, retain=True)

    async with hub.subscribe("hub/state", qos=1, limit=9) as arrivals:
        (waiting,) = await take(arrivals, 1)
        await hub.publish("hub/state", b"still up", qos=1, retain=True)
        (live,) = await take(arrivals, 1)

    assert (waiting.payload, waiting.retained) == (b"up", True)
    assert (live.payload, live.retained) == (b"still up", False)


async def test_an_empty_payload_clears_a_retained_one(rig: Rig) -> None:
    hub = await rig.connect("hub")
    await hub.publish("hub/state", b"up", qos=1, retain=True)
    await hub.publish("hub/state", b"", qos=1, retain=True)

    async with hub.subscribe("hub/#", qos=1, limit=9) as arrivals:
        assert await nothing_more(arrivals)


async def test_the_will_speaks_for_a_client_that_drops(rig: Rig) -> None:
    hub = await rig.connect("hub")
    await rig.connect("node", will=Will("d/node/state", b"lost", 0))

    async with hub.subscribe("d/+/state", qos=1, limit=9) as states:
        await rig.cut("node")
        taken = await take(states, 1)

    assert payloads(taken) == [b"lost"]


async def test_a_goodbye_silences_the_will(rig: Rig) -> None:
    hub = await rig.connect("hub")
    await rig.connect("node", will=Will("d/node/state", b"lost", 0))

    async with hub.subscribe("d/+/state", qos=1, limit=9) as states:
        await rig.leave("node")

        assert await nothing_more(states)


async def test_an_unacknowledged_payload_comes_again_after_a_reconnect(rig: Rig) -> None:
    hub = await rig.connect("hub", session_expiry_s=60)
    node = await rig.connect("node")

    async with hub.subscribe("record", qos=1, limit=9) as records:
        for payload in (b"kept", b"forgotten"):
            await node.publish("record", payload, qos=1)
        kept, _ = await take(records, 2, ack=False)
        kept.ack()
        await hub.publish("after/the/ack", b"", qos=1)
        await rig.cut("hub")
        await until(lambda: not hub.is_connected)
        await rig.mend("hub")
        again = await take(records, 1)

        assert payloads(again) == [b"forgotten"]
        assert await nothing_more(records)


async def test_payloads_wait_for_a_session_that_is_away(rig: Rig) -> None:
    hub = await rig.connect("hub", session_expiry_s=60)
    node = await rig.connect("node")

    async with hub.subscribe("record", qos=1, limit=99) as records:
        await rig.cut("hub")
        await until(lambda: not hub.is_connected)
        sent = [b"%d" % number for number in range(20)]
        for payload in sent:
            await node.publish("record", payload, qos=1)
        await rig.mend("hub")

        assert payloads(await take(records, 20)) == sent


async def test_acknowledgements_may_come_in_any_order(rig: Rig) -> None:
    hub, node = await rig.connect("hub"), await rig.connect("node")
    sent = [b"%d" % number for number in range(30)]

    async with hub.subscribe("record", qos=1, limit=99) as records:
        for payload in sent:
            await node.publish("record", payload, qos=1)
        taken = await take(records, 30, ack=False)
        for inbound in reversed(taken):
            inbound.ack()
            inbound.ack()
        for payload in sent:
            await node.publish("record", payload, qos=1)

        assert payloads(await take(records, 30)) == sent
    assert hub.counters.losses == 0


async def test_a_late_acknowledgement_of_a_lost_link_does_nothing(rig: Rig) -> None:
    hub, node = await rig.connect("hub"), await rig.connect("node")

    async with hub.subscribe("record", qos=1, limit=9) as records:
        await node.publish("record", b"1", qos=1)
        (first,) = await take(records, 1, ack=False)
        await rig.cut("hub")
        await until(lambda: not hub.is_connected)
        await rig.mend("hub")
        await asyncio.wait_for(hub.wait_connected(), SOON_S)
        first.ack()
        await node.publish("record", b"2", qos=1)

        assert b"2" in payloads(await take(records, 1))


async def test_a_shared_subscription_gives_each_payload_to_one_worker(rig: Rig) -> None:
    node = await rig.connect("node")
    one, two = await rig.connect("worker1"), await rig.connect("worker2")

    async with (
        one.subscribe("$share/hub/d/+/record", qos=1, limit=99) as first,
        two.subscribe("$share/hub/d/+/record", qos=1, limit=99) as second,
    ):
        sent = {b"%d" % number for number in range(40)}
        for payload in sent:
            await node.publish("d/node/record", payload, qos=1)
        shares: tuple[list[bytes], list[bytes]] = ([], [])
        tasks = [
            asyncio.create_task(collect(first, shares[0]), name="collect first"),
            asyncio.create_task(collect(second, shares[1]), name="collect second"),
        ]
        await until(lambda: len(shares[0]) + len(shares[1]) >= 40)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    assert sorted(shares[0] + shares[1]) == sorted(sent)
    assert min(len(share) for share in shares) >= 10


async def test_the_rest_of_a_group_serves_when_a_worker_dies(rig: Rig) -> None:
    node = await rig.connect("node")
    one, two = await rig.connect("worker1"), await rig.connect("worker2")

    async with (
        one.subscribe("$share/hub/d/+/record", qos=1, limit=99),
        two.subscribe("$share/hub/d/+/record", qos=1, limit=99) as left,
    ):
        await rig.cut("worker1")
        await until(lambda: not one.is_connected)
        await asyncio.sleep(0.2)  # the broker notices
        sent = {b"%d" % number for number in range(20)}
        for payload in sent:
            await node.publish("d/node/record", payload, qos=1)

        assert set(payloads(await take(left, 20))) == sent


async def collect(arrivals: AsyncIterator[Inbound], into: list[bytes]) -> None:
    async for inbound in arrivals:
        inbound.ack()
        into.append(inbound.payload)


async def test_overlapping_subscriptions_do_not_steal_from_each_other(rig: Rig) -> None:
    client = await rig.connect("client")

    async with (
        client.subscribe("a/b", qos=1, limit=99) as exact,
        client.subscribe("a/+", "a/#", qos=1, limit=99) as wide,
        client.subscribe("a/b", qos=0, limit=99) as same,
    ):
        for number in range(5):
            await client.publish("a/b", b"%d" % number, qos=1)
        everything = [b"0", b"1", b"2", b"3", b"4"]

        for arrivals in (exact, wide, same):
            assert payloads(await take(arrivals, 5)) == everything
        for arrivals in (exact, wide, same):
            assert await nothing_more(arrivals)


async def test_a_subscription_that_ended_receives_nothing(rig: Rig) -> None:
    client = await rig.connect("client")
    async with client.subscribe("a/b", qos=1, limit=9):
        pass
    await client.publish("a/b", b"early", qos=1)

    async with client.subscribe("a/b", qos=1, limit=9) as arrivals:
        await client.publish("a/b", b"late", qos=1)

        assert payloads(await take(arrivals, 1)) == [b"late"]


async def test_a_full_queue_drops_the_oldest_qos_0_payloads(rig: Rig) -> None:
    client = await rig.connect("client")

    async with client.subscribe("a", qos=0, limit=4) as arrivals:
        for number in range(10):
            await client.publish("a", b"%d" % number, qos=0)
        await until(lambda: client.counters.dropped == 6)

        assert payloads(await take(arrivals, 4)) == [b"6", b"7", b"8", b"9"]


async def test_a_full_queue_loses_no_qos_1_payload(rig: Rig) -> None:
    client = await rig.connect("client")

    async with client.subscribe("a", qos=1, limit=4) as arrivals:
        sent = [b"%d" % number for number in range(30)]
        for payload in sent:
            await client.publish("a", payload, qos=1)

        assert payloads(await take(arrivals, 30)) == sent
    assert client.counters.dropped == 0


async def test_everything_comes_back_after_a_broker_restart(rig: Rig) -> None:
    hub, node = await rig.connect("hub"), await rig.connect("node")

    async with (
        hub.subscribe("d/+/rq", qos=0, limit=9) as plain,
        hub.subscribe("$share/hub/d/+/record", qos=1, limit=9) as shared,
    ):
        await rig.stop()
        async with asyncio.timeout(SOON_S):
            await hub.wait_connected(False)
            await node.wait_connected(False)
        await rig.start()
        async with asyncio.timeout(SOON_S):
            await hub.wait_connected()
            await node.wait_connected()
        await node.publish("d/node/rq", b"ask", qos=0)
        await node.publish("d/node/record", b"fact", qos=1)

        assert payloads(await take(plain, 1)) == [b"ask"]
        assert payloads(await take(shared, 1)) == [b"fact"]
    assert hub.counters.dropped == 0


async def test_publishing_while_the_link_is_down_fails_at_once(rig: Rig) -> None:
    node = await rig.connect("node")
    await rig.stop()
    await asyncio.wait_for(node.wait_connected(False), SOON_S)
    begin = asyncio.get_running_loop().time()

    for qos in (0, 1):
        with pytest.raises(TransportError, match="the link to the broker"):
            await node.publish("a", b"", qos=qos)

    assert asyncio.get_running_loop().time() - begin < 2
    assert not node.is_connected
    await rig.start()


async def test_a_subscription_made_while_the_link_is_down_counts_later(rig: Rig) -> None:
    node, hub = await rig.connect("node"), await rig.connect("hub")
    await rig.cut("node")
    await asyncio.wait_for(node.wait_connected(False), SOON_S)

    async with node.subscribe("a", qos=1, limit=9) as arrivals:
        await rig.mend("node")
        await asyncio.wait_for(node.wait_connected(), SOON_S)
        await hub.publish("a", b"now", qos=1)

        assert payloads(await take(arrivals, 1)) == [b"now"]


async def test_a_filter_that_is_none_is_refused(rig: Rig) -> None:
    client = await rig.connect("client")

    for pattern in ("", "a/#/b", "a+/b", "$share/hub"):
        with pytest.raises(TransportError, match="is not a topic filter"):
            async with client.subscribe(pattern, qos=0, limit=9):
                pass


async def test_large_payloads_pass_whole(rig: Rig) -> None:
    client = await rig.connect("client")
    sent = [bytes([number]) * 200_000 for number in range(4)]

    async with client.subscribe("a", qos=1, limit=9) as arrivals:
        async with asyncio.TaskGroup() as tasks:
            for payload in sent:
                tasks.create_task(client.publish("a", payload, qos=1), name="publish")

        assert payloads(await take(arrivals, 4)) == sent


async def test_a_kicked_client_does_not_come_back_at_once(mqtt_rig: Rig) -> None:
    first, second = await mqtt_rig.connect("twin"), await mqtt_rig.connect("twin")
    await asyncio.wait_for(first.wait_connected(False), SOON_S)
    await asyncio.sleep(1.5)

    # With full jitter under ceilings of 50, 100, 200 ms that are never reset, a fight of 1.5 s
    # ends every link a few times at most; without back-off it is thousands.
    assert first.counters.connects + second.counters.connects < 60
