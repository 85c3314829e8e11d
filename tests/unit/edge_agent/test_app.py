"""The whole agent on the in-memory broker: its loopback interface, its queue, its presence."""

import asyncio
import http.client
import json
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from edge_agent import client as client_module
from edge_agent import generate as generate_module
from edge_agent import repair as repair_module
from edge_agent.answer import Glimpse, Made, Step
from edge_agent.app import presence_of, run
from edge_agent.client import EdgeClient, NoAgentError
from edge_agent.device import Device, Order
from edge_agent.endpoint import HOST, Endpoint, find
from edge_agent.settings import AgentSettings, GenerationSettings
from edge_agent.station import open_station
from fleet.errors import CapacityError, FleetError, InvalidInputError, TransportError
from fleet.ids import BootId, ModelVersion, WorkerId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import HubStatus, NodeStatus
from fleet.transport.base import Inbound
from fleet.transport.memory import MemoryBroker
from tests.unit.edge_agent.toy import ToyDevice, ToyDrafter, order, stop_and_wait
from tests.unit.edge_agent.toy_cloud import toy_cloud

CAPTION = "a toy"
HUB_UP = HubStatus(
    up=True,
    boot_id=BootId("hub"),
    worker=WorkerId("w1"),
    family="toy",
    cloud_version=ModelVersion("toy"),
    hub_version="toy",
)


class TokenDevice(ToyDevice):
    """Its picture shows the tokens, so that a caller can be told which they are."""

    fails = False

    def decode(self, tokens: NDArray[Any]) -> NDArray[Any]:
        import numpy as np

        if self.fails:
            raise RuntimeError("a bug")
        return np.concatenate([tokens, [0, 0, 0]]).astype(np.uint8).reshape(3, 3, 3)


class RowDevice(ToyDevice):
    """Its picture has a row of pixels for each of the five rows of tokens."""

    def decode(self, tokens: NDArray[Any]) -> NDArray[Any]:
        import numpy as np

        rows = np.append(tokens, 0).reshape(5, 5).astype(np.uint8)
        return np.repeat(rows[:, :, None], 3, axis=2)


class SlowDevice(TokenDevice):
    """Waits for a permission to begin."""

    def __init__(self) -> None:
        super().__init__()
        import threading

        self.may_begin = threading.Event()

    def begin(self, order: Order) -> ToyDrafter:
        assert self.may_begin.wait(10)
        return super().begin(order)


def settings(path: Path, **generation: Any) -> AgentSettings:
    return AgentSettings(
        state_dir=path, generation=GenerationSettings(start_patience_s=0.2, **generation)
    )


@asynccontextmanager
async def running(
    broker: MemoryBroker, settings: AgentSettings, device: Device, lines: list[str] | None = None
) -> AsyncIterator[EdgeClient]:
    said: list[str] = [] if lines is None else lines
    ready = asyncio.Event()

    def announce(sentence: str) -> None:
        said.append(sentence)
        if sentence == "ready":
            ready.set()

    with open_station(settings.state_path, "node", patience_s=0) as station:
        will = presence_of(station, device.manifest).will()
        async with broker.connect("node", will) as transport:
            task = asyncio.create_task(run(settings, station, device, transport, announce))
            await asyncio.wait(
                [task, asyncio.create_task(ready.wait())], return_when="FIRST_COMPLETED"
            )
            try:
                yield EdgeClient(settings.state_path)
            finally:
                task.cancel()
                await asyncio.wait([task])


def tokens(made: Made) -> list[int]:
    return [int(value) for value in made.image.reshape(-1)[:24]]


async def test_a_caller_gets_the_picture_and_its_numbers(tmp_path: Path) -> None:
    broker = MemoryBroker()
    steps: list[Step] = []

    async with (
        toy_cloud(broker) as cloud,
        running(broker, settings(tmp_path), TokenDevice()) as client,
    ):
        made = await asyncio.to_thread(client.generate, CAPTION, seed=7, on_step=steps.append)
        status = await asyncio.to_thread(client.status)

    assert stop_and_wait(order(7), 24) == tokens(made)
    assert made.prefix + made.local + made.verified == made.tokens == 24
    assert 7 == made.seed
    assert steps[-1].tokens == 24
    assert 1 == status["pictures"]
    assert 1 == len(cloud.records)
    assert made.generation_id == cloud.records[0].generation_id


@pytest.mark.parametrize("policy", ["ciar", "device-only"])
async def test_a_preview_grows_by_rows_of_final_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(generate_module, "PREVIEW_S", 0.0)
    broker = MemoryBroker()
    seen: list[Glimpse] = []

    async with (
        toy_cloud(broker) as cloud,
        running(broker, settings(tmp_path, chunk=1), RowDevice()) as client,
    ):
        cloud.spoil = lambda answer: (0.01, answer)
        made = await asyncio.to_thread(
            client.generate, CAPTION, seed=7, policy=policy, on_preview=seen.append
        )

    rows = [glimpse.rows for glimpse in seen]
    assert rows == sorted(set(rows))
    assert len(rows) >= 2
    assert rows[-1] <= 5
    for glimpse in seen:
        assert (made.image[: glimpse.rows] == glimpse.image[: glimpse.rows]).all()
        assert (glimpse.image[glimpse.rows :] == generate_module.GREY).all()


@pytest.mark.parametrize("policy", ["verify-all", "device-only"])
async def test_a_caller_chooses_the_policy(tmp_path: Path, policy: Any) -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker), running(broker, settings(tmp_path), TokenDevice()) as client:
        made = await asyncio.to_thread(client.generate, CAPTION, seed=3, policy=policy)

    assert policy == made.policy.replace("_", "-")
    assert (24 - 3 if policy == "verify-all" else 0) == made.verified


async def test_errors_come_back_as_themselves(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.stop()

    async with running(broker, settings(tmp_path), TokenDevice()) as client:
        with pytest.raises(InvalidInputError, match="no words"):
            await asyncio.to_thread(client.generate, "")
        with pytest.raises(InvalidInputError, match="seed"):
            await asyncio.to_thread(client.generate, CAPTION, seed=-1)
        with pytest.raises(InvalidInputError, match="deadline_s"):
            await asyncio.to_thread(client.generate, CAPTION, deadline_s=0)
        with pytest.raises(InvalidInputError, match="shorten"):
            await asyncio.to_thread(client.generate, "a" * 20_000)
        with pytest.raises(InvalidInputError, match="characters"):
            await asyncio.to_thread(client.generate, "a" * 2_000)
        with pytest.raises(TransportError, match="no broker"):
            await asyncio.to_thread(client.generate, CAPTION, without_cloud="fail")


async def test_without_a_broker_the_caller_is_told_what_is_unverified(tmp_path: Path) -> None:
    broker = MemoryBroker()
    broker.stop()
    lines: list[str] = []

    async with running(broker, settings(tmp_path), TokenDevice(), lines) as client:
        made = await asyncio.to_thread(client.generate, CAPTION, seed=7)
        status = await asyncio.to_thread(client.status)

    assert "no_broker" == made.fallback
    assert made.unverified > 0
    assert "unverified" in made.notes[0]
    assert 1 == status["outbox_records"]
    assert "start it" in status["advice"]


async def test_pictures_are_made_one_after_the_other_and_the_queue_has_an_end(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker()
    device = SlowDevice()
    queued: list[int] = []

    def note(step: Step) -> None:
        if step.state == "queued":
            queued.append(step.ahead)

    async with toy_cloud(broker), running(broker, settings(tmp_path, queue=2), device) as client:
        async with asyncio.TaskGroup() as tasks:
            makings = []
            for seed in range(3):
                makings.append(
                    tasks.create_task(
                        asyncio.to_thread(client.generate, CAPTION, seed=seed, on_step=note)
                    )
                )
                while (await asyncio.to_thread(client.status))["waiting"] < seed:
                    await asyncio.sleep(0.01)
            with pytest.raises(CapacityError, match="wait already"):
                await asyncio.to_thread(client.generate, CAPTION)
            device.may_begin.set()

        assert [1, 2] == queued
        for seed, making in enumerate(makings):
            assert stop_and_wait(order(seed), 24) == tokens(making.result())


async def test_a_caller_who_hangs_up_cancels_the_picture(tmp_path: Path) -> None:
    broker = MemoryBroker()

    async with (
        toy_cloud(broker) as cloud,
        running(broker, settings(tmp_path), TokenDevice()) as client,
    ):
        cloud.spoil = lambda answer: (0.05, answer)
        endpoint = find(tmp_path / "api.json")
        assert endpoint is not None
        await asyncio.to_thread(_hang_up, endpoint)
        async with asyncio.timeout(5):
            while not cloud.closed:
                await asyncio.sleep(0.01)
        assert not (await asyncio.to_thread(client.status))["is_working"]

    (record,) = cloud.records
    assert "cancelled" == record.fallback
    assert record.tokens < 24


async def test_a_picture_that_the_device_finished_alone_is_corrected_when_the_cloud_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_module, "LOOK_S", 0.05)
    broker = MemoryBroker()
    device = TokenDevice()

    async with running(broker, settings(tmp_path, without_cloud="repair"), device) as client:
        alone = await asyncio.to_thread(client.generate, CAPTION, seed=7)
        waiting = await asyncio.to_thread(client.pictures)
    async with (
        toy_cloud(broker) as cloud,
        running(broker, settings(tmp_path), device) as client,  # another start
    ):
        await cloud.transport.publish(
            topics.hub_state(HUB_UP.worker), encode(HUB_UP), qos=1, retain=True
        )
        async with asyncio.timeout(20):
            while (await asyncio.to_thread(client.pictures))[0]["state"] == "waiting":
                await asyncio.sleep(0.02)
            while len(cloud.records) < 2:
                await asyncio.sleep(0.02)
        corrected = await asyncio.to_thread(client.picture, alone.generation_id)
        status = await asyncio.to_thread(client.status)
        with pytest.raises(InvalidInputError, match="no such picture"):
            await asyncio.to_thread(client.picture, "another")

    assert "timeout" == alone.fallback
    assert alone.unverified > 0
    assert "edge_agent pictures" in alone.notes[-1]
    assert [("waiting", alone.generation_id)] == [
        (each["state"], each["generation_id"]) for each in waiting
    ]
    assert stop_and_wait(order(7), 24) == tokens(corrected)
    assert (alone.generation_id, 0) == (corrected.repairs, corrected.unverified)
    assert {"", alone.generation_id} == {record.repairs for record in cloud.records}
    assert 0 == status["pictures_to_correct"]


async def test_a_caller_who_waits_gets_no_unverified_token_once_the_cloud_comes(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker()
    wishes = settings(tmp_path, without_cloud="wait", outage_patience_s=0.1, open_deadline_s=0.2)

    async with running(broker, wishes, TokenDevice()) as client:
        making = asyncio.create_task(asyncio.to_thread(client.generate, CAPTION, seed=7))
        await asyncio.sleep(1.0)  # far beyond any patience
        async with toy_cloud(broker):
            made = await making

    assert ("", 0) == (made.fallback, made.unverified)
    assert stop_and_wait(order(7), 24) == tokens(made)


def _hang_up(endpoint: Endpoint) -> None:
    """Asks for a picture, reads its first step and closes the connection."""
    connection = http.client.HTTPConnection(HOST, endpoint.port, timeout=5)
    wish = json.dumps({"caption": CAPTION, "policy": "verify-all"})
    connection.request("POST", "/v1/pictures", wish, {"authorization": f"Bearer {endpoint.token}"})
    response = connection.getresponse()
    response.readline()
    response.close()
    connection.close()


async def test_a_bug_in_one_picture_does_not_end_the_agent(tmp_path: Path) -> None:
    broker = MemoryBroker()
    device = TokenDevice()
    device.fails = True

    async with toy_cloud(broker), running(broker, settings(tmp_path), device) as client:
        with pytest.raises(FleetError, match="log has the traceback"):
            await asyncio.to_thread(client.generate, CAPTION)
        device.fails = False
        assert (await asyncio.to_thread(client.generate, CAPTION)).tokens == 24


async def test_the_address_is_for_the_user_only_and_goes_with_the_agent(tmp_path: Path) -> None:
    broker = MemoryBroker()

    async with running(broker, settings(tmp_path), TokenDevice()) as client:
        assert 0o600 == stat.S_IMODE((tmp_path / "api.json").stat().st_mode)

    assert not (tmp_path / "api.json").exists()
    with pytest.raises(NoAgentError, match="edge_agent run"):
        await asyncio.to_thread(client.status)


async def test_without_the_token_there_is_no_answer(tmp_path: Path) -> None:
    broker = MemoryBroker()

    async with running(broker, settings(tmp_path), TokenDevice()) as client:
        endpoint = find(tmp_path / "api.json")
        assert endpoint is not None
        wrong = Endpoint(endpoint.port, "guess", endpoint.pid)
        (tmp_path / "api.json").write_text(
            json.dumps({"port": wrong.port, "token": "guess", "pid": 1})
        )

        with pytest.raises(NoAgentError, match="is gone"):
            await asyncio.to_thread(client.status)


@pytest.mark.parametrize("left", ["{}", "", '{"port": 1, "token": "t", "pid": 1}'])
def test_the_file_of_a_dead_agent_is_seen_through(tmp_path: Path, left: str) -> None:
    (tmp_path / "api.json").write_text(left)

    with pytest.raises(NoAgentError):
        EdgeClient(tmp_path).status()


def test_an_agent_that_hangs_is_not_taken_for_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "STATUS_S", 0.1)
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        (tmp_path / "api.json").write_text(json.dumps({"port": port, "token": "t", "pid": 1}))

        with pytest.raises(TransportError, match="does not answer") as raised:
            EdgeClient(tmp_path).status()

    assert not isinstance(raised.value, NoAgentError)


async def test_presence_says_ready_and_stopped(tmp_path: Path) -> None:
    broker = MemoryBroker()
    watcher = broker.connect("watcher")

    async with watcher.subscribe(topics.NODE_STATES, qos=1, limit=10) as arrivals:
        async with running(broker, settings(tmp_path), TokenDevice()):
            ready = await _status(arrivals)
        stopped = await _status(arrivals)

    assert ("ready", "stopped") == (ready.state, stopped.state)
    assert ready.boot_id == stopped.boot_id
    assert {"platform", "cores", "memory_mb", "onnxruntime", "python"} <= set(ready.facts)


async def test_a_lost_link_is_told_by_the_will_and_a_new_one_by_another_birth(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker()
    watcher = broker.connect("watcher")

    async with (
        watcher.subscribe(topics.NODE_STATES, qos=1, limit=10) as arrivals,
        running(broker, settings(tmp_path), TokenDevice()),
    ):
        states = [(await _status(arrivals)).state]
        broker.cut("node")
        states.append((await _status(arrivals)).state)
        await asyncio.sleep(0.01)  # a link is not back before its end was seen
        broker.mend("node")
        states.append((await _status(arrivals)).state)

    assert ["ready", "lost", "ready"] == states


async def _status(arrivals: AsyncIterator[Inbound]) -> NodeStatus:
    async with asyncio.timeout(5):
        inbound = await anext(arrivals)
    inbound.ack()
    status = decode(inbound.payload)
    assert isinstance(status, NodeStatus)
    return status
