"""A gate holds what goes through it, both ways, and loses none of it."""

import asyncio

from fleet.transport.memory import MemoryBroker
from simulations.world.clock import run_in_virtual_time
from simulations.world.gate import Gate


async def _held() -> tuple[list[bytes], list[bytes], bool]:
    broker = MemoryBroker()
    gate, hub = Gate(broker.connect("worker")), broker.connect("hub")
    async with (
        gate.subscribe("in", qos=1, limit=10) as arrivals,
        hub.subscribe("out", qos=1, limit=10) as answers,
    ):
        gate.close()
        for payload in (b"1", b"2"):
            await hub.publish("in", payload, qos=1)
        saying = asyncio.create_task(gate.publish("out", b"3", qos=1))
        for _ in range(2):  # whoever gives up waiting takes nothing with it
            try:
                async with asyncio.timeout(1):
                    await anext(arrivals)
            except TimeoutError:
                continue
            raise AssertionError("something came through")
        was_silent = not saying.done() and gate.is_connected
        gate.open()
        await saying
        heard = [(await anext(arrivals)).payload for _ in range(2)]
        return heard, [(await anext(answers)).payload], was_silent


def test_what_came_to_a_closed_gate_comes_through_when_it_opens() -> None:
    assert run_in_virtual_time(_held()) == ([b"1", b"2"], [b"3"], True)
