"""What the agent sees around it, and what it makes of that."""

import asyncio
import time

import pytest

from edge_agent.surroundings import Surroundings
from fleet.ids import BootId, ModelVersion, WorkerId
from fleet.protocol import topics
from fleet.protocol.codec import encode
from fleet.protocol.messages import HubStatus
from fleet.transport.memory import MemoryBroker


def around(lines: list[str], gone: list[str]) -> Surroundings:
    return Surroundings("here:1", lines.append, gone.append)


def hub_status(*, up: bool, worker: str = "w1") -> HubStatus:
    return HubStatus(
        up=up,
        boot_id=BootId("b"),
        worker=WorkerId(worker),
        family="toy",
        cloud_version=ModelVersion("c"),
        hub_version="0",
    )


def test_a_hub_that_goes_is_told_once_with_its_worker() -> None:
    lines: list[str] = []
    gone: list[str] = []
    seen = around(lines, gone)

    for up in (True, True, False, False):
        seen.take(hub_status(up=up))

    assert ["hub w1 is up: toy, cloud model c", "hub w1 is down"] == lines
    assert ["w1", "w1"] == gone


def test_of_two_workers_one_may_go_and_the_hub_is_still_up() -> None:
    lines: list[str] = []
    gone: list[str] = []
    seen = around(lines, gone)

    for worker, up in (("w1", True), ("w2", True), ("w1", False)):
        seen.take(hub_status(up=up, worker=worker))

    assert ["w1"] == gone
    assert seen.hub is not None
    assert ("w2", True) == (seen.hub.worker, seen.hub.up)
    assert ["hub w1 is up: toy, cloud model c"] == lines


@pytest.mark.parametrize(
    ("link_is_up", "hub", "advice"),
    [
        (False, None, "no broker at here:1"),
        (True, None, "no hub does"),
        (True, False, "no hub does"),
        (True, True, ""),
    ],
)
def test_advice_names_what_is_down(link_is_up: bool, hub: bool | None, advice: str) -> None:
    seen = around([], [])
    seen.link_is_up = link_is_up
    if hub is not None:
        seen.take(hub_status(up=hub))

    assert advice in seen.advice
    assert bool(advice) == bool(seen.advice)


def test_a_hub_is_absent_since_its_last_sign() -> None:
    seen = around([], [])
    seen.hub_since = time.time() - 100

    assert seen.hub_absent_s(0) == pytest.approx(100, abs=5)
    assert seen.hub_absent_s(time.time() - 10) == pytest.approx(10, abs=5)
    seen.take(hub_status(up=True))
    assert 0 == seen.hub_absent_s(0)


async def test_a_hub_status_that_is_no_message_of_ours_is_left_out() -> None:
    broker = MemoryBroker()
    hub, transport = broker.connect("hub"), broker.connect("node")
    seen = around([], [])
    task = asyncio.create_task(seen.run(transport))

    await hub.publish(topics.hub_state(WorkerId("w1")), b"nonsense", qos=1, retain=True)
    await hub.publish(
        topics.hub_state(WorkerId("w1")), encode(hub_status(up=True)), qos=1, retain=True
    )
    async with asyncio.timeout(5):
        while seen.hub is None:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])

    assert seen.hub.up
    assert seen.link_is_up
