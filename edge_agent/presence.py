"""What the fleet knows of this node: birth, heartbeat, goodbye, and a will for the rest."""

import asyncio
import os
import platform
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Literal

from edge_agent.outbox import Spool
from edge_agent.station import Station, agent_version
from fleet.errors import TransportError
from fleet.ids import ModelVersion
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import encode
from fleet.protocol.messages import NodeStatus
from fleet.transport.base import Transport, Will

JITTER = 0.2
WILL_DELAY_S = 5
GOODBYE_S = 1.0

log = get_logger(__name__)


State = Literal["ready", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a heartbeat counts."""

    pictures: int
    spool: Spool


NOTHING = Counts(0, Spool(0, 0, 0))


@dataclass(slots=True)
class Presence:
    """The statuses of one boot of one node; what changes is said with the next of them."""

    station: Station
    device_version: ModelVersion
    family: str
    training: str = ""  # "ready", or why this node does not take part in rounds
    update: str = ""  # what stands between the device and the model that is wanted, if anything
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, device_version: ModelVersion, update: str) -> None:
        """Says which model runs, and what stands between it and the wanted one; at once."""
        self.device_version, self.update = device_version, update
        self._news.set()

    def will(self) -> Will:
        """What the broker says when the link dies without a goodbye."""
        topic = topics.node_state(self.station.node)
        return Will(topic, encode(self._status("lost", NOTHING)), WILL_DELAY_S)

    async def run(
        self, transport: Transport, heartbeat_s: float, counts: Callable[[], Awaitable[Counts]]
    ) -> None:
        """Says "ready" at each new link and at each heartbeat, until cancelled."""
        while True:
            await transport.wait_connected()
            await self._publish(transport, self._status("ready", await counts(), facts()))
            await self._until_next(transport, heartbeat_s * random.uniform(1 - JITTER, 1 + JITTER))

    async def _until_next(self, transport: Transport, heartbeat_s: float) -> None:
        """Returns at the heartbeat, when the link has gone, or when there is news."""
        waits = [
            asyncio.create_task(transport.wait_connected(False), name="link of presence"),
            asyncio.create_task(self._news.wait(), name="news of presence"),
        ]
        try:
            await asyncio.wait(waits, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._news.clear()
            for each in waits:
                each.cancel()

    async def goodbye(self, transport: Transport, counts: Callable[[], Awaitable[Counts]]) -> None:
        """Says "stopped", where the link still stands."""
        if transport.is_connected:
            await self._publish(transport, self._status("stopped", await counts(), facts()))

    async def _publish(self, transport: Transport, status: NodeStatus) -> None:
        try:
            async with asyncio.timeout(GOODBYE_S if status.state == "stopped" else None):
                await transport.publish(
                    topics.node_state(self.station.node), encode(status), qos=1, retain=True
                )
        except (TransportError, TimeoutError):
            log.info("status not published", state=status.state)

    def _status(
        self, state: State, counts: Counts, machine: dict[str, str] | None = None
    ) -> NodeStatus:
        spool = counts.spool
        training = {"training": self.training} if self.training else {}
        training |= {"update": self.update} if self.update else {}
        lost = {"outbox_lost": str(spool.lost), "outbox_stripped": str(spool.stripped)}
        lost |= {f"outbox_lost_{name}": str(total) for name, total in spool.sums.items()}
        return NodeStatus(
            boot_id=self.station.boot,
            state=state,
            agent_version=agent_version(),
            device_version=self.device_version,
            family=self.family,
            facts={**(machine or {}), **training, **(lost if spool.lost or spool.stripped else {})},
            pictures=counts.pictures,
            outbox_records=spool.records,
            at=time.time(),
        )


def facts() -> dict[str, str]:
    """What an operator wants to know of the machine, as text."""
    return dict(_machine())


@cache
def _machine() -> dict[str, str]:
    return {
        "platform": f"{platform.system()} {platform.release()}"[:512],
        "machine": platform.machine(),
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "cores": str(os.cpu_count() or 0),
        "memory_mb": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20),
    }
