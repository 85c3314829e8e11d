"""The seam for the network: publish, subscribe, acknowledge.

Three implementations: `mqtt.py` (MQTT 5, acknowledgement by hand), `memory.py` (one process, for
tests and virtual time) and `link.py` (a simulated link around either).
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

QoS = Literal[0, 1]


class Acknowledge(Protocol):
    """Tells the broker that a payload's effect is durable; calling it again does nothing."""

    def __call__(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Inbound:
    """A payload that arrived. QoS 1 payloads come again until `ack` is called."""

    topic: str
    payload: bytes
    retained: bool
    ack: Acknowledge
    qos: QoS = 0


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes (QoS 1, retained) when the link dies without a goodbye."""

    topic: str
    payload: bytes
    delay_s: int


class Transport(Protocol):
    """One client's link to a broker.

    The link re-connects by itself (full jitter, capped) and subscribes again. While it is
    down `publish` raises `TransportError` at once: whoever must not lose a payload keeps it
    until it is answered (the outbox), and whoever asks again does so by its own deadline.
    """

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: QoS,
        retain: bool = False,
        expiry_s: float | None = None,
    ) -> None:
        """Hands a payload to the broker; with QoS 1 returns after the broker has it.

        Raises:
            TransportError: The link is down, or the broker did not answer within its deadline.
        """
        ...

    def subscribe(
        self, *filters: str, qos: QoS, limit: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Inbound]]:
        """Payloads that match one of `filters`, until the context ends.

        At most `limit` payloads wait in the queue: beyond it QoS 0 payloads are dropped, oldest
        first (counted), and QoS 1 payloads stay unacknowledged, which holds the broker back.
        They may be acknowledged in any order; the broker hears of it in the order of arrival.
        """
        ...

    @property
    def is_connected(self) -> bool:
        """Whether the broker answered the last packet that it should have answered."""
        ...

    async def wait_connected(self, connected: bool = True) -> None:
        """Returns when the link is up (or down); the caller sets the deadline."""
        ...
