"""The MQTT 5 packets that come and go by the thousand, as bytes: PUBLISH and PUBACK; pure.

A payload costs paho some twenty objects and six locks on its way, more time than all that a hub
does with most of them. What is rare stays with paho: logging in, subscribing, pings, QoS 1 out.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

from fleet.errors import ProtocolError
from fleet.transport.base import QoS

PUBLISH, _PUBACK = 3, 0x40  # the first is the upper half of a packet's first byte
_EXPIRY, _SUBSCRIPTION = 0x02, 0x0B
_SIZES = {0x01: 1, _EXPIRY: 4, 0x23: 2}  # bytes of properties that have always as many
_STRINGS = {0x03: 1, 0x08: 1, 0x09: 1, 0x26: 2}  # those with u16 lengths, and how many of these
_KEPT_BYTES = 64  # of properties whose meaning is kept


class Publish(NamedTuple):
    """A payload that arrived.

    Attributes:
        mid: Its packet id, 0 at QoS 0.
        subscriptions: The numbers of the filters for which the broker sent it.
    """

    topic: str
    payload: bytes
    qos: QoS
    retained: bool
    mid: int
    subscriptions: tuple[int, ...]


def end_of(data: bytearray, start: int) -> int | None:
    """Where the packet that begins at `start` ends; None while not all of it is there.

    Raises:
        ProtocolError: It states no length.
    """
    try:
        length, body = _number(data, start + 1)
    except IndexError:
        return None
    return body + length if body + length <= len(data) else None


def read_publish(packet: bytes) -> Publish:
    """What a PUBLISH packet says.

    Raises:
        ProtocolError: It is not formed as MQTT 5 wants it, or of a QoS that nobody asked for.
    """
    try:
        qos, at = packet[0] >> 1 & 3, 1
        _, at = _number(packet, at)
        end = at + 2 + _u16(packet, at)
        topic = packet[at + 2 : end].decode()
        mid = _u16(packet, end) if qos else 0
        size, at = _number(packet, end + 2 if qos else end)
        properties = packet[at : at + size]
        read = _kept_subscriptions if size <= _KEPT_BYTES else _subscriptions
        numbers = read(properties)
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise ProtocolError(f"a PUBLISH packet is malformed: {error!r}") from error
    if qos > 1 or len(properties) != size:
        raise ProtocolError(f"a PUBLISH packet of QoS {qos} and {len(packet)} bytes is malformed")
    return Publish(topic, packet[at + size :], 1 if qos else 0, bool(packet[0] & 1), mid, numbers)


def publish(topic: str, payload: bytes, *, retain: bool, expiry_s: int | None) -> bytes:
    """A PUBLISH packet of QoS 0.

    Raises:
        ProtocolError: The topic is none that can be published to.
    """
    name = topic.encode()
    if not 0 < len(name) < 1 << 16 or b"+" in name or b"#" in name or b"\0" in name:
        raise ProtocolError(f"{topic[:80]!r} is not a topic that can be published to")
    properties = b"\0" if expiry_s is None else struct.pack("!BBI", 5, _EXPIRY, expiry_s)
    size = _varint(2 + len(name) + len(properties) + len(payload))
    head = PUBLISH << 4 | retain
    return b"".join((bytes((head,)), size, len(name).to_bytes(2), name, properties, payload))


def puback(mid: int) -> bytes:
    """A PUBACK packet that says success."""
    return struct.pack("!BBH", _PUBACK, 2, mid)


def _subscriptions(properties: bytes) -> tuple[int, ...]:
    found, at = [], 0
    while at < len(properties):
        kind, at = properties[at], at + 1
        if kind == _SUBSCRIPTION:
            number, at = _number(properties, at)
            found.append(number)
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            for _ in range(_STRINGS[kind]):
                at += 2 + _u16(properties, at)
    return tuple(found)


_kept_subscriptions = lru_cache(maxsize=256)(_subscriptions)


def _u16(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]


def _number(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """A number of 1 to 4 bytes, 7 bits each, the lowest first; and where it ends."""
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for place in range(1, 4):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ProtocolError("a packet states no length")


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
