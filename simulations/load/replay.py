"""Devices that only ask: recorded pictures sent again over MQTT, with no device computing.

`python -m simulations.load.replay` reads an order (JSON), replays until its time is over and
prints a report (JSON); a process of its own, so that its work is not the hub's.
"""

import asyncio
import json
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import cast

from fleet.errors import FleetError
from fleet.ids import BootId, GenerationId, NodeId, RequestId, new_id
from fleet.logs import configure_logs
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import (
    Busy,
    GenerationClose,
    GenerationOpen,
    GenerationOpened,
    Refused,
    VerifyRequest,
    VerifyResponse,
)
from fleet.transport.base import Inbound, Transport
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from simulations.load.recording import Script

_INBOX = 65_536
_LOST_S = 30.0  # an answer that did not come: at QoS 0 it may be lost

Answer = GenerationOpened | VerifyResponse | Busy | Refused


@dataclass(frozen=True, slots=True)
class Order:
    """What to replay."""

    port: int
    devices: int
    seconds: float
    warm_up_s: float
    thinks: bool  # waits the recorded gaps, as a device that drafts
    scripts: tuple[Script, ...]


@dataclass(slots=True)
class Report:
    """What came of it after the warm-up; of pictures that ended after it.

    Attributes:
        pictures: Made in the time, those in parts that were under way at its ends: an answer is the
            part of its picture that it is of all answers.
    """

    seconds: float = 0.0
    pictures: float = 0.0
    busy: int = 0
    refused: int = 0
    lost: int = 0
    verify_s: list[float] = field(default_factory=list)
    picture_s: list[float] = field(default_factory=list)


async def replay(order: Order) -> Report:
    """Runs all devices on one link until the time is over."""
    boot = BootId(new_id())
    settings = BrokerSettings(port=order.port)
    async with (
        connect(settings, client_id=f"replay-{boot[:8]}") as transport,
        transport.subscribe(f"fleet/v1/d/+/rx/{boot}", qos=0, limit=_INBOX) as inbox,
    ):
        crowd = _Crowd(order, transport, boot)
        listening = asyncio.create_task(crowd.listen(inbox), name="inbox")
        report = await crowd.run()
        listening.cancel()
        await asyncio.wait([listening])
        return report


class _Crowd:
    def __init__(self, order: Order, transport: Transport, boot: BootId) -> None:
        self._order = order
        self._transport = transport
        self._boot = boot
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._report = Report()
        self._begins = time.monotonic() + order.warm_up_s
        self._ends = self._begins + order.seconds

    async def run(self) -> Report:
        async with asyncio.TaskGroup() as group:
            for index in range(self._order.devices):
                group.create_task(self._device(index), name=f"device {index}")
        self._report.seconds = self._order.seconds
        return self._report

    async def listen(self, inbox: AsyncIterator[Inbound]) -> None:
        async for inbound in inbox:
            message = decode(inbound.payload)
            if isinstance(message, GenerationOpened | VerifyResponse | Busy | Refused):
                future = self._waiting.pop(message.request_id, None)
                if future is not None and not future.done():
                    future.set_result(message)

    async def _device(self, index: int) -> None:
        node = NodeId(f"replay-{index}")
        scripts = self._order.scripts
        # Not all at once: devices of a fleet do not begin together.
        await asyncio.sleep(self._order.warm_up_s / 2 * index / self._order.devices)
        turn = index
        while time.monotonic() < self._ends:
            begun = time.monotonic()
            done = await self._picture(node, scripts[turn % len(scripts)])
            if done and time.monotonic() > self._begins:
                self._report.picture_s.append(time.monotonic() - begun)
            turn += 1

    async def _picture(self, node: NodeId, script: Script) -> bool:
        """One picture; whether it was finished in time."""
        names = {"generation_id": GenerationId(new_id()), "boot_id": self._boot}
        opened = await self._ask(topics.open_request(node), script.opening, names)
        if not isinstance(opened, GenerationOpened):
            return False
        part = 1 / (1 + len(script.backlogs))
        self._count(part)
        topic = topics.pinned_request(node, opened.worker)
        for backlog, gap_s in zip(script.backlogs, script.gaps_s, strict=True):
            if self._order.thinks:
                await asyncio.sleep(gap_s)
            begun = time.monotonic()
            answer = await self._ask(topic, backlog, names)
            if not isinstance(answer, VerifyResponse):
                return False
            self._count(part)
            if begun > self._begins:
                self._report.verify_s.append(time.monotonic() - begun)
        await self._close(topic, GenerationId(names["generation_id"]))
        return True

    def _count(self, part: float) -> None:
        if self._begins < time.monotonic() <= self._ends:
            self._report.pictures += part

    async def _close(self, topic: str, generation: GenerationId) -> None:
        message = GenerationClose(boot_id=self._boot, generation_id=generation)
        await self._transport.publish(topic, encode(message), qos=0)

    async def _ask(
        self, topic: str, message: GenerationOpen | VerifyRequest, names: dict[str, str]
    ) -> Answer | None:
        """The answer; None when the time is over or the answer was lost."""
        while time.monotonic() < self._ends:
            request_id = RequestId(new_id())
            payload = encode(message.model_copy(update={**names, "request_id": request_id}))
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._waiting[request_id] = future
            await self._transport.publish(topic, payload, qos=0)
            try:
                async with asyncio.timeout(_LOST_S):
                    answer = await future
            except TimeoutError:
                self._waiting.pop(request_id, None)
                self._report.lost += 1
                return None
            if isinstance(answer, Refused):
                self._report.refused += 1
            if not isinstance(answer, Busy):
                return answer
            self._report.busy += 1
            await asyncio.sleep(answer.retry_after_s)
        return None


async def replayed(order: Order) -> Report:
    """The report of a replay in a process of its own.

    Raises:
        FleetError: The process failed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "simulations.load.replay",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(_to_json(order).encode())
    if process.returncode != 0:
        raise FleetError(f"the replay ended with exit code {process.returncode}")
    return Report(**json.loads(out))


def _to_json(order: Order) -> str:
    scripts = [
        {
            "opening": b64encode(encode(script.opening)).decode(),
            "backlogs": [b64encode(encode(each)).decode() for each in script.backlogs],
            "gaps_s": script.gaps_s,
        }
        for script in order.scripts
    ]
    plain = {name: getattr(order, name) for name in ("port", "devices", "seconds", "warm_up_s")}
    return json.dumps({**plain, "thinks": order.thinks, "scripts": scripts})


def _from_json(text: str) -> Order:
    values = json.loads(text)
    scripts = tuple(
        Script(
            cast(GenerationOpen, decode(b64decode(each["opening"]))),
            tuple(cast(VerifyRequest, decode(b64decode(one))) for one in each["backlogs"]),
            tuple(each["gaps_s"]),
        )
        for each in values.pop("scripts")
    )
    return Order(scripts=scripts, **values)


if __name__ == "__main__":
    configure_logs(log_format="console", level="warning")
    sys.stdout.write(json.dumps(asdict(asyncio.run(replay(_from_json(sys.stdin.read()))))))
