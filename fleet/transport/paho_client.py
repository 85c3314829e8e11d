"""paho clients and packet properties as our links want them."""

import functools
from dataclasses import dataclass
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from fleet.protocol.codec import MAX_MESSAGE_BYTES
from fleet.transport.base import Will
from fleet.transport.broker import BrokerSettings
from fleet.transport.wire import Wire

RECEIVE_MAXIMUM = 256  # QoS 1 payloads that may wait for their acknowledgement here
SEND_MAXIMUM = 20  # QoS 1 publishes that may wait for the broker; mosquitto's own default
PACKET_OVERHEAD_BYTES = 4096  # topic and properties around a message


@dataclass(frozen=True, slots=True)
class Identity:
    """Who connects, what is said of it when it dies, and for how long it is remembered."""

    client_id: str
    will: Will | None
    session_expiry_s: int


class _Client(paho.Client):
    """paho on a socket that is connected already (its own `connect` blocks)."""

    wire: Wire

    def _create_socket(self) -> Any:
        return self.wire


def make_client(wire: Wire, broker: BrokerSettings, identity: Identity) -> paho.Client:
    """A client whose `reconnect` sends CONNECT over `wire`."""
    client = _Client(
        CallbackAPIVersion.VERSION2,
        client_id=identity.client_id,
        protocol=paho.MQTTv5,
        manual_ack=True,
    )
    client.wire = wire
    client.max_inflight_messages_set(SEND_MAXIMUM)
    if broker.username:
        client.username_pw_set(broker.username, broker.password.get_secret_value())
    if (will := identity.will) is not None:
        properties = _properties(PacketTypes.WILLMESSAGE, WillDelayInterval=will.delay_s)
        client.will_set(will.topic, will.payload, qos=1, retain=True, properties=properties)
    client.connect_async(
        broker.host,
        broker.port,
        broker.keepalive_s,
        clean_start=identity.session_expiry_s == 0,
        properties=_properties(
            PacketTypes.CONNECT,
            SessionExpiryInterval=identity.session_expiry_s,
            ReceiveMaximum=RECEIVE_MAXIMUM,
            MaximumPacketSize=MAX_MESSAGE_BYTES + PACKET_OVERHEAD_BYTES,
        ),
    )
    return client


def subscription_properties(number: int) -> Properties:
    """The number that comes back with each payload of one filter."""
    return _properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=number)


@functools.lru_cache(maxsize=64)
def expiry_properties(expiry_s: int | None) -> Properties | None:
    """How long the broker may keep a payload, in seconds."""
    if expiry_s is None:
        return None
    return _properties(PacketTypes.PUBLISH, MessageExpiryInterval=expiry_s)


def _lighten(kind: type[Properties]) -> None:
    """Lets paho's properties share their tables, of all properties there are.

    paho makes them for each packet; nobody changes them.
    """
    tables = {n: v for n, v in vars(_properties(PacketTypes.PUBLISH)).items() if n != "packetType"}

    def begin(self: Properties, packetType: int) -> None:  # noqa: N803 - paho's name
        self.__dict__.update(tables, packetType=packetType)

    kind.__init__ = begin  # type: ignore[method-assign]


def _properties(packet: int, **values: int) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


_lighten(Properties)
