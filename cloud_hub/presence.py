"""A worker's retained word that it is there: birth after each connection, last will, goodbye.

Each worker has a topic of its own, so one's will says nothing of the others. What is left of those
that were gone before this one began is cleared.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fleet.errors import ProtocolError, TransportError
from fleet.ids import BootId, ModelVersion, WorkerId
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import HubStatus
from fleet.transport.base import Inbound, Transport, Will

log = get_logger(__name__)

_WILL_DELAY_S = 2
_REPEAT_S = 30.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is, in this life."""

    worker: WorkerId
    boot: BootId
    family: str
    cloud_version: ModelVersion
    hub_version: str

    def status(self, *, up: bool) -> HubStatus:
        """The worker's word that it is up, or no longer."""
        return HubStatus(
            up=up,
            boot_id=self.boot,
            worker=self.worker,
            family=self.family,
            cloud_version=self.cloud_version,
            hub_version=self.hub_version,
        )

    @property
    def will(self) -> Will:
        """What the broker says when the worker's link dies without a goodbye."""
        return Will(topics.hub_state(self.worker), encode(self.status(up=False)), _WILL_DELAY_S)


async def announce(transport: Transport, identity: Identity) -> None:
    """Says that the hub is up after each connection and now and then, until cancelled."""
    while True:
        await transport.wait_connected()
        said = await say(transport, identity, up=True)
        # Again after a while: a link may break and mend, and a late will come, unseen from here.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPEAT_S if said else _RETRY_S):
                await transport.wait_connected(False)


async def say(transport: Transport, identity: Identity, *, up: bool) -> bool:
    """Publishes the status; whether the broker has it."""
    try:
        payload = encode(identity.status(up=up))
        await transport.publish(topics.hub_state(identity.worker), payload, qos=1, retain=True)
    except TransportError as error:
        log.warning("hub status not published", up=up, reason=str(error))
        return False
    return True


async def tidy(transport: Transport, states: AsyncIterator[Inbound], identity: Identity) -> None:
    """Clears the retained words of workers that are gone, until cancelled."""
    async for inbound in states:
        with contextlib.suppress(TransportError, ProtocolError):
            # A word that comes live is for the devices; it is cleared by who starts later.
            if inbound.retained and inbound.payload and _is_gone(inbound.payload, identity):
                await transport.publish(inbound.topic, b"", qos=1, retain=True)
        inbound.ack()


def _is_gone(payload: bytes, identity: Identity) -> bool:
    status = decode(payload)
    if not isinstance(status, HubStatus):
        raise ProtocolError(f"{type(status).__name__} is no hub's status")
    return not status.up and status.worker != identity.worker
