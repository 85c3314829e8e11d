"""The node's part in rounds: asked twice it answers once, and a picture goes first."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_agent.training import worker as worker_module
from edge_agent.training.replies import KEPT, Replies
from edge_agent.training.trainer import Trainer
from edge_agent.training.worker import Worker, WorkerError, missing
from fleet.errors import OutputError
from fleet.federation.bodies import CHUNK_BYTES, split
from fleet.federation.codec import digest
from fleet.ids import NodeId, RequestId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import RoundChunk, RoundReply, RoundTask
from fleet.transport.memory import MemoryBroker, MemoryTransport

NODE = NodeId("node-1")
BODY = bytes(range(256)) * 500  # two parts

# A stand-in for the training process: echoes the body's size, or counts while it computes.
CHILD = """
import sys, time, msgpack
read, write = sys.stdin.buffer, sys.stdout.buffer
ticks = open(sys.argv[1] + "/ticks", "w")
while head := read.read(4):
    request = msgpack.unpackb(read.read(int.from_bytes(head, "big")))
    if request["kind"] == "evaluate":
        sys.exit(3)
    for _ in range(request.get("ticks", 0)):
        ticks.write("x"); ticks.flush(); time.sleep(0.01)
    data = msgpack.packb({"content": str(len(request["body"])).encode()})
    write.write(len(data).to_bytes(4, "big") + data); write.flush()
"""


class ToyWorker(Worker):
    """A worker whose process is the stand-in."""

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, *self._arguments), stdin=pipe, stdout=pipe
        )


def task(name: str, kind: str = "train", body: bytes = BODY) -> RoundTask:
    parts = len(split(body))
    return RoundTask(
        message_id=RequestId(name),
        run=1,
        number=2,
        kind=kind,  # type: ignore[arg-type]
        body=digest(body),
        chunks=parts,
        deadline_s=20.0,
    )


async def publish_body(hub: MemoryTransport, body: bytes = BODY) -> None:
    for index, part in enumerate(split(body)):
        payload = encode(RoundChunk(index=index, data=part))
        await hub.publish(topics.round_chunk(digest(body), index), payload, qos=1, retain=True)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.01)


async def test_a_task_is_trained_once_and_answered_each_time(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with broker.connect("hub") as hub, broker.connect(NODE) as link:
        worker = ToyWorker([tmp_path], lambda: False)
        trainer = Trainer(NODE, tmp_path, worker, link)
        async with hub.subscribe(topics.ROUND_REPLIES, qos=1, limit=8) as replies:
            running = asyncio.create_task(trainer.run())
            await asyncio.sleep(0)
            await publish_body(hub)
            answers = []
            for _ in range(3):
                await hub.publish(topics.round_tasks(NODE), encode(task("a")), qos=1)
                async with asyncio.timeout(30):
                    answers.append(decode((await anext(replies)).payload))
            running.cancel()
            await asyncio.wait([running])

    assert trainer.trained == 1
    assert answers[0] == answers[1] == answers[2]
    assert isinstance(answers[0], RoundReply)
    assert answers[0].data == str(len(BODY)).encode()


async def test_an_answer_survives_the_agent(tmp_path: Path) -> None:
    Replies(tmp_path).keep(RequestId("a"), b"content", "")

    assert Replies(tmp_path).find(RequestId("a")) == (b"content", "")
    assert Replies(tmp_path).find(RequestId("b")) is None


def test_only_the_last_answers_are_kept(tmp_path: Path) -> None:
    replies = Replies(tmp_path)
    for number in range(KEPT + 3):
        replies.keep(RequestId(f"m{number}"), b"", "")

    assert len(list(tmp_path.iterdir())) == KEPT
    assert replies.find(RequestId(f"m{KEPT + 2}")) is not None


def test_a_message_id_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is no file name"):
        Replies(tmp_path).keep(RequestId("../x"), b"", "")


async def test_a_picture_stops_the_training_at_once_and_its_end_goes_on(tmp_path: Path) -> None:
    wanted = False
    worker = ToyWorker([tmp_path], lambda: wanted)
    ticks = tmp_path / "ticks"
    asked = asyncio.create_task(worker.ask({"kind": "train", "body": b"12", "ticks": 60}))
    await until(lambda: ticks.exists() and ticks.stat().st_size > 2)

    wanted = True
    await until(lambda: worker.is_paused)
    await asyncio.sleep(0.1)  # the signal is delivered
    before = ticks.stat().st_size
    await asyncio.sleep(0.5)
    while_wanted = ticks.stat().st_size - before
    wanted = False
    answer = await asked
    await worker.close()

    assert while_wanted == 0
    assert answer == {"content": b"2"}
    assert ticks.stat().st_size == 60


async def test_training_does_not_begin_while_a_picture_is_wanted(tmp_path: Path) -> None:
    wanted = True
    worker = ToyWorker([tmp_path], lambda: wanted)
    asked = asyncio.create_task(worker.ask({"kind": "train", "body": b""}))
    await asyncio.sleep(0.2)

    assert not (tmp_path / "ticks").exists()
    wanted = False
    assert await asked == {"content": b"0"}
    await worker.close()


async def test_a_process_that_ends_is_told_and_another_is_started(tmp_path: Path) -> None:
    worker = ToyWorker([tmp_path], lambda: False)

    with pytest.raises(WorkerError, match="ended before it answered"):
        await worker.ask({"kind": "evaluate", "body": b""})
    answer = await worker.ask({"kind": "train", "body": b"123"})
    await worker.close()

    assert answer == {"content": b"3"}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[str, Any] = {"flwr": object()}
    monkeypatch.setattr(worker_module, "find_spec", there.get)

    assert missing() == "torch, onnx"


def test_parts_fit_a_message() -> None:
    payload = encode(RoundChunk(index=0, data=bytes(CHUNK_BYTES)))

    assert len(payload) < 1 << 17
