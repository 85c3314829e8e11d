"""MQTT 5: `connect` gives a transport to a broker."""

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import random

from fleet.errors import TransportError
from fleet.transport.base import Will
from fleet.transport.broker import Backoff, BrokerSettings
from fleet.transport.paho_client import Identity
from fleet.transport.paho_link import PahoLink
from fleet.transport.uplink import Deliver, Uplink
from fleet.transport.wire import open_wire


@asynccontextmanager
async def connect(
    broker: BrokerSettings,
    *,
    client_id: str,
    will: Will | None = None,
    session_expiry_s: int = 0,
    wait: bool = True,
) -> AsyncIterator[Uplink]:
    """A transport to `broker` that re-connects by itself until the context ends.

    With `wait` the first link is up on entry; without, the transport starts offline and keeps
    trying (an agent must start without a broker). With `session_expiry_s` the broker keeps
    subscriptions and unacknowledged QoS 1 payloads for that long after a loss. The default, 0,
    is right wherever the sender repeats until it is answered: a payload parked for a hub
    worker that is gone would be out of reach of the others.

    Raises:
        TransportError: With `wait`: no broker there, or it refuses the link.
    """
    identity = Identity(client_id, will, session_expiry_s)
    uplink = Uplink(
        f"the broker at {broker.address}",
        functools.partial(_open_link, broker, identity),
        Backoff(broker.reconnect_s, broker.reconnect_cap_s, broker.stable_s, random),
    )
    if wait:
        uplink.adopt(await uplink.open())
    keeper = asyncio.create_task(uplink.keep_up(), name=f"mqtt {client_id}")
    try:
        yield uplink
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])
        await uplink.goodbye()


async def _open_link(broker: BrokerSettings, identity: Identity, deliver: Deliver) -> PahoLink:
    try:
        async with asyncio.timeout(broker.answer_s):
            wire = await open_wire(broker)
            link = PahoLink(wire, broker, identity, deliver)
            try:
                await link.log_in()
            except BaseException:
                await link.abort("it was not taken in")
                raise
            return link
    except TimeoutError as error:
        raise TransportError(
            f"no broker at {broker.address}; no answer within {broker.answer_s:g} s: check"
            " broker.host, broker.port and what lies between"
        ) from error
