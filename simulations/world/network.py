"""How the clients of a run reach their broker: in memory, or over MQTT."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from fleet.errors import InvalidInputError
from fleet.transport.base import Transport, Will
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect


class Network(Protocol):
    """A broker as its clients see it; `MemoryBroker`, and `MqttNetwork`."""

    def connect(
        self, client_id: str, will: Will | None = None
    ) -> AbstractAsyncContextManager[Transport]:
        """A client's link, until the context ends."""
        ...

    def cut(self, client_id: str) -> None:
        """Breaks a client's link without a goodbye."""
        ...


@dataclass(frozen=True, slots=True)
class MqttNetwork:
    """A real broker."""

    broker: BrokerSettings

    def connect(
        self, client_id: str, will: Will | None = None
    ) -> AbstractAsyncContextManager[Transport]:
        """See `Network.connect`."""
        return connect(self.broker, client_id=client_id, will=will, wait=False)

    def cut(self, client_id: str) -> None:
        """See `Network.cut`.

        Raises:
            InvalidInputError: Always: many agents share a process, which cannot be killed for one.
        """
        raise InvalidInputError(f"the link of {client_id} cannot be cut on the real clock")
