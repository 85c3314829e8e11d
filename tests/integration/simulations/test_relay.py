"""Links disturbed in TCP itself, between the product's MQTT client and real brokers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from fleet.errors import TransportError
from fleet.transport.base import Inbound, Transport
from fleet.transport.broker import BrokerSettings
from fleet.transport.embedded import embedded_broker
from fleet.transport.mqtt import connect
from simulations.real.links import LinkFault, disturbed
from simulations.real.relay import Relay
from simulations.scenarios.files import parse
from simulations.scenarios.population import population
from tests.services import Mosquitto, free_port

SOON_S = 20.0
REPEAT_S = 0.05


@pytest.fixture(params=["trial", pytest.param("mosquitto", marks=pytest.mark.broker)])
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """A real broker's."""
    if request.param == "mosquitto":
        server: Mosquitto = request.getfixturevalue("mosquitto")
        yield server.port
        return
    async with embedded_broker(chosen := free_port()):
        yield chosen


async def test_a_reset_at_any_byte_loses_nothing_and_damages_nothing(port: int) -> None:
    """A session breaks at its first byte, the next one at its second, up to one that is whole."""
    async with (
        asyncio.timeout(6 * SOON_S),
        Relay(port) as relay,
        linked(port, "echo") as echo,
        echo.subscribe("up", qos=1, limit=64) as requests,
    ):
        heard = Counter[bytes]()
        echoing = asyncio.create_task(answer(echo, requests, heard), name="echo")
        size = broken = 0
        while relay.breaks == broken:
            broken, size = relay.breaks + 1, size + 1
            relay.limit(size)
            lifting = asyncio.create_task(lift(relay, broken), name="lift")
            sent = [b"%d of %d" % (number, size) for number in range(2)]
            async with (
                linked(relay.port, "node") as node,
                node.subscribe("down", qos=0, limit=64) as answers,
            ):
                for payload in sent:
                    assert await asked(node, payload, answers) == payload
            lifting.cancel()
            assert set(heard) == set(sent)  # whole, and nothing else
            heard.clear()
        echoing.cancel()
        assert size > 100  # log-in, subscription, two payloads and what answers them


async def test_a_cut_ends_links_and_refuses_new_ones_until_it_is_mended(port: int) -> None:
    async with Relay(port) as relay, linked(relay.port, "node") as node:
        await asyncio.wait_for(node.wait_connected(), SOON_S)

        await relay.cut()
        await asyncio.wait_for(node.wait_connected(False), SOON_S)
        with pytest.raises(TransportError):
            await node.publish("a", b"1", qos=1)
        await asyncio.gather(relay.mend(), relay.mend())  # two faults end at one moment

        await asyncio.wait_for(node.wait_connected(), SOON_S)
        await asyncio.wait_for(node.publish("a", b"2", qos=1), SOON_S)


async def test_a_reset_is_a_lost_connection(port: int) -> None:
    async with Relay(port) as relay, linked(relay.port, "node") as node:
        await asyncio.wait_for(node.wait_connected(), SOON_S)

        relay.reset()
        await asyncio.wait_for(node.wait_connected(False), SOON_S)

        await asyncio.wait_for(node.wait_connected(), SOON_S)


async def test_a_black_hole_gives_back_what_it_swallowed(port: int) -> None:
    async with (
        Relay(port) as relay,
        linked(relay.port, "node") as node,
        linked(port, "other") as other,
        other.subscribe("a", qos=1, limit=8) as arrivals,
    ):
        await asyncio.wait_for(node.wait_connected(), SOON_S)
        await asyncio.wait_for(other.wait_connected(), SOON_S)

        relay.swallow()
        publishing = asyncio.create_task(node.publish("a", b"1", qos=1), name="publish")
        done, _ = await asyncio.wait([publishing], timeout=0.2)
        assert not done
        assert node.is_connected
        await relay.mend()

        await asyncio.wait_for(publishing, SOON_S)
        assert (await asyncio.wait_for(anext(arrivals), SOON_S)).payload == b"1"


async def test_a_slow_link_delays_every_byte_once(port: int) -> None:
    """Payloads that follow each other are not later than one."""
    loop = asyncio.get_running_loop()
    async with Relay(port) as relay, linked(relay.port, "node") as node:
        await asyncio.wait_for(node.wait_connected(), SOON_S)

        relay.slow(0.2)
        began = loop.time()
        await asyncio.gather(*(node.publish("a", b"1", qos=1) for _ in range(8)))

        assert 0.4 <= loop.time() - began < 1.2


@pytest.mark.parametrize("kind", ["cut-links", "swallow-links", "limit-links"])
async def test_a_scenarios_fault_holds_a_link_for_its_time(port: int, kind: str) -> None:
    fault = {"kind": kind, "at_s": 1.0, **({"bytes": 5} if kind == "limit-links" else {})}
    values = {"name": "one", "about": "A test.", "devices": 1, "seconds": 9.0, "faults": [fault]}
    scenario = parse(values, source="a test")
    [resident] = population(scenario, 1)
    [present] = scenario.faults
    assert isinstance(present, LinkFault)
    async with Relay(port) as relay, linked(relay.port, "node") as node:
        await asyncio.wait_for(node.wait_connected(), SOON_S)

        async with disturbed(present, [(resident, relay)]):
            publishing = asyncio.create_task(surely(node, b"1"), name="publish")
            done, _ = await asyncio.wait([publishing], timeout=0.2)
            assert not done

        await asyncio.wait_for(publishing, SOON_S)


@asynccontextmanager
async def linked(port: int, name: str) -> AsyncIterator[Transport]:
    """A client of the product's own, which comes back soon."""
    quick = {"reconnect_s": 0.002, "reconnect_cap_s": 0.02}
    broker = BrokerSettings.model_validate({"port": port, **quick})
    async with connect(broker, client_id=name, wait=False) as transport:
        yield transport


async def answer(
    transport: Transport, requests: AsyncIterator[Inbound], heard: Counter[bytes]
) -> None:
    """Sends back what arrives."""
    async for inbound in requests:
        heard[inbound.payload] += 1
        inbound.ack()
        await transport.publish("down", inbound.payload, qos=0)


async def asked(transport: Transport, payload: bytes, answers: AsyncIterator[Inbound]) -> bytes:
    """The answer to a payload, which is sent until there is one."""
    while True:
        await transport.wait_connected()
        with suppress(TransportError):
            await transport.publish("up", payload, qos=1)
        with suppress(TimeoutError):
            async with asyncio.timeout(REPEAT_S):
                while (inbound := await anext(answers)).payload != payload:
                    pass  # of a request that was answered twice
                return inbound.payload


async def surely(transport: Transport, payload: bytes) -> None:
    """Publishes until the broker has it."""
    while True:
        await transport.wait_connected()
        with suppress(TransportError):
            await transport.publish("a", payload, qos=1)
            return
        await asyncio.sleep(0.001)  # it is down, and does not know yet


async def lift(relay: Relay, breaks: int) -> None:
    """Takes the limit away once it has broken a link."""
    while relay.breaks < breaks:
        await asyncio.sleep(0)
    relay.limit(None)
