"""What the agent sees around it: its link to the broker, and the hub behind that."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.errors import ProtocolError
from fleet.ids import WorkerId
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode
from fleet.protocol.messages import HubStatus
from fleet.transport.base import Transport

HUB_STATUS_LIMIT = 16
FIRST_LOOK_S = 2.0  # until a broker that does not answer is worth a line

log = get_logger(__name__)


@dataclass(slots=True)
class Surroundings:
    """Link and hub, each with the time of its last change (seconds since the epoch)."""

    broker: str  # its address, for sentences
    announce: Callable[[str], None]
    worker_is_down: Callable[[WorkerId], None]
    link_is_up: bool = False
    link_since: float = field(default_factory=time.time)
    hub: HubStatus | None = None  # a worker that is up, else the last one heard of
    workers: dict[WorkerId, HubStatus] = field(default_factory=dict)  # those that are up
    hub_since: float = field(default_factory=time.time)

    async def run(self, transport: Transport) -> None:
        """Follows both until cancelled, and says in a line what changes."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_link(transport), name="follow the link")
            tasks.create_task(self._follow_hub(transport), name="follow the hub")

    def take(self, message: object) -> None:
        """Takes a hub's status; anything else is not for here."""
        if not isinstance(message, HubStatus):
            return
        was_up = bool(self.workers)
        if message.up:
            self.workers[message.worker] = message
        else:
            self.workers.pop(message.worker, None)
            self.worker_is_down(message.worker)
        self.hub = next(iter(self.workers.values()), message)
        if self.hub.up != was_up:
            self.hub_since = time.time()
            self.announce(
                f"hub {message.worker} is up: {message.family}, cloud model {message.cloud_version}"
                if message.up
                else f"hub {message.worker} is down"
            )

    async def _follow_link(self, transport: Transport) -> None:
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await transport.wait_connected()
        except TimeoutError:
            self.announce(
                f"no broker at {self.broker} yet: trying on; pictures are made by the device"
                " alone until it answers"
            )
        while True:
            await transport.wait_connected()
            self._link(True, f"connected to the broker at {self.broker}")
            await transport.wait_connected(False)
            self.workers.clear()  # a worker that goes meanwhile is not heard
            self._link(
                False,
                f"the link to the broker at {self.broker} is down: connecting again; pictures"
                " are made by the device alone until it is back",
            )

    async def _follow_hub(self, transport: Transport) -> None:
        states = transport.subscribe(topics.HUB_STATES, qos=1, limit=HUB_STATUS_LIMIT)
        async with states as arrivals:
            async for inbound in arrivals:
                if inbound.payload:  # an empty one clears the word of a worker long gone
                    self._read(inbound.payload)
                inbound.ack()

    def _read(self, payload: bytes) -> None:
        try:
            self.take(decode(payload))
        except ProtocolError as error:
            log.warning("hub status dropped", reason=str(error))

    def _link(self, is_up: bool, sentence: str) -> None:
        self.link_is_up, self.link_since = is_up, time.time()
        self.announce(sentence)

    def link_down_s(self) -> float:
        """For how long there has been no broker; 0 while there is one."""
        return 0.0 if self.link_is_up else max(0.0, time.time() - self.link_since)

    def hub_absent_s(self, heard_at: float) -> float:
        """For how long there has been no sign of a hub, an answer included; 0 while one is up."""
        if self.hub is not None and self.hub.up:
            return 0.0
        return max(0.0, time.time() - max(self.hub_since, heard_at))

    @property
    def advice(self) -> str:
        """What to do about what is down; empty when nothing is."""
        if not self.link_is_up:
            return (
                f"no broker at {self.broker}: start it (`cloud_hub serve` brings one), or correct"
                " broker.host and broker.port"
            )
        if self.hub is None or not self.hub.up:
            return "the broker answers but no hub does: start one (`cloud_hub serve`)"
        return ""
