"""The keeper of a link: subscribes before it says that it is up, and outlives every failure."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from fleet.errors import TransportError
from fleet.transport.base import Inbound, QoS
from fleet.transport.broker import Backoff
from fleet.transport.uplink import Deliver, Ending, Uplink

SOON_S = 8.0


class FakeLink:
    """A link that does what the test says."""

    def __init__(self, network: "Network", deliver: Deliver) -> None:
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.filters: dict[str, QoS] = {}
        self.deliver = deliver
        self._network = network

    async def publish(
        self, topic: str, payload: bytes, *, qos: QoS, retain: bool, expiry_s: float | None
    ) -> None:
        inbound = Inbound(topic, payload, retain, lambda: None, qos)
        self.deliver(inbound, None)

    async def subscribe(self, filters: Mapping[str, QoS]) -> None:
        self._network.log.append(("subscribe", *filters))
        await self._network.grants.wait()
        if self._network.refused in filters:
            raise TransportError(f"refused {self._network.refused}")
        self.filters |= filters

    def unsubscribe(self, filters: Collection[str]) -> None:
        if filters:
            self._network.log.append(("unsubscribe", *filters))

    async def goodbye(self) -> None:
        self._network.log.append(("goodbye",))

    async def abort(self, reason: str) -> None:
        self._network.log.append(("abort", reason))


class Network:
    """Opens fake links, after as many failures as the test wants."""

    def __init__(self) -> None:
        self.log: list[tuple[str, ...]] = []
        self.links: list[FakeLink] = []
        self.failures: list[Exception] = []
        self.grants = asyncio.Event()
        self.grants.set()
        self.refused = ""

    async def open_link(self, deliver: Deliver) -> FakeLink:
        if self.failures:
            raise self.failures.pop(0)
        self.links.append(FakeLink(self, deliver))
        return self.links[-1]

    @asynccontextmanager
    async def uplink(self) -> AsyncIterator[Uplink]:
        uplink = Uplink("the broker", self.open_link, Backoff(0.001, 0.01, 9.0, lambda: 1.0))
        keeper = asyncio.create_task(uplink.keep_up(), name="keeper")
        try:
            yield uplink
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])
            await uplink.goodbye()


async def test_it_is_up_only_after_every_subscription_is_granted() -> None:
    network = Network()
    network.grants.clear()
    async with network.uplink() as uplink, uplink.subscribe("a", qos=1, limit=9) as arrivals:
        await asyncio.sleep(0.01)
        assert not uplink.is_connected
        network.grants.set()
        await asyncio.wait_for(uplink.wait_connected(), SOON_S)
        await uplink.publish("a", b"1", qos=0)

        assert (await anext(arrivals)).payload == b"1"


async def test_what_is_subscribed_while_it_connects_is_granted_too() -> None:
    network = Network()
    network.grants.clear()
    async with network.uplink() as uplink, uplink.subscribe("a", qos=0, limit=9):
        await asyncio.sleep(0.01)
        async with uplink.subscribe("b", qos=1, limit=9):
            network.grants.set()
            await asyncio.wait_for(uplink.wait_connected(), SOON_S)

            assert network.links[-1].filters == {"a": 0, "b": 1}


async def test_what_ends_while_it_connects_is_taken_back() -> None:
    network = Network()
    network.grants.clear()
    async with network.uplink() as uplink:
        async with uplink.subscribe("a", qos=0, limit=9):
            await asyncio.sleep(0.01)
        network.grants.set()
        await asyncio.wait_for(uplink.wait_connected(), SOON_S)

        assert ("unsubscribe", "a") in network.log


async def test_a_shared_filter_stays_until_its_last_subscription_ends() -> None:
    network = Network()
    async with network.uplink() as uplink:
        await asyncio.wait_for(uplink.wait_connected(), SOON_S)
        async with uplink.subscribe("a", qos=0, limit=9):
            async with uplink.subscribe("a", qos=1, limit=9):
                pass
            assert ("unsubscribe", "a") not in network.log
        assert ("unsubscribe", "a") in network.log


async def test_neither_refusals_nor_bugs_end_the_keeper() -> None:
    network = Network()
    network.failures = [TransportError("no broker"), ValueError("a bug"), OSError("a socket")]
    async with network.uplink() as uplink:
        await asyncio.wait_for(uplink.wait_connected(), SOON_S)

        assert uplink.counters.connects == 1


async def test_a_lost_link_is_replaced_and_says_why_it_is_down() -> None:
    network = Network()
    async with network.uplink() as uplink, uplink.subscribe("a", qos=0, limit=9):
        await asyncio.wait_for(uplink.wait_connected(), SOON_S)
        network.failures = [TransportError("no broker")] * 2
        network.links[-1].ended.set_result(Ending("the cable was cut"))
        await asyncio.wait_for(uplink.wait_connected(False), SOON_S)
        with pytest.raises(TransportError, match="the link to the broker is down: "):
            await uplink.publish("a", b"", qos=0)
        await asyncio.wait_for(uplink.wait_connected(), SOON_S)

        assert network.log.count(("subscribe", "a")) == 2
        assert (uplink.counters.connects, uplink.counters.losses) == (2, 1)


async def test_a_refused_subscription_is_told_to_whoever_asks() -> None:
    network = Network()
    network.refused = "secret"
    async with network.uplink() as uplink:
        await asyncio.wait_for(uplink.wait_connected(), SOON_S)
        with pytest.raises(TransportError, match="refused secret"):
            async with uplink.subscribe("secret", qos=0, limit=9):
                pass

        assert uplink.is_connected


async def test_an_outage_is_one_warning_however_often_it_is_tried() -> None:
    network = Network()
    network.failures = [TransportError("no broker") for _ in range(5)]
    with capture_logs() as events:
        async with network.uplink() as uplink:
            await asyncio.wait_for(uplink.wait_connected(), SOON_S)

    warned = [event for event in events if event["event"] == "link down"]
    assert ["warning", "debug", "debug", "debug", "debug"] == [e["log_level"] for e in warned]
