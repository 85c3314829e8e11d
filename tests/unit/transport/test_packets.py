"""Packets that pass paho by say what MQTT 5 has them say."""

from typing import Any

import pytest
from paho.mqtt import packettypes, properties

from fleet.errors import ProtocolError
from fleet.transport.packets import Publish, end_of, puback, publish, read_publish

BODY = b"x" * 300


def packed(**values: Any) -> bytes:
    made: Any = properties.Properties(packettypes.PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    data: bytes = made.pack()
    return data


def packet(first: int, body: bytes) -> bytes:
    assert 128 <= len(body) < 1 << 14
    return bytes([first, len(body) & 127 | 128, len(body) >> 7]) + body


@pytest.mark.parametrize("long", ["", "v" * 200])
def test_a_payload_of_qos_1_says_its_filters_whatever_else_is_said(long: str) -> None:
    said = packed(
        SubscriptionIdentifier=300,
        MessageExpiryInterval=7,
        PayloadFormatIndicator=1,
        ContentType="text",
        ResponseTopic="r",
        CorrelationData=b"\x0b\x01",
        TopicAlias=3,
        UserProperty=("name", long),
    )
    data = packet(0b0011_1011, b"\0\x03a/b" + b"\x01\x02" + said + BODY)

    assert read_publish(data) == Publish("a/b", BODY, 1, True, 258, (300,))


def test_what_is_published_is_read_again() -> None:
    for payload in (b"", b"y" * 120, BODY, b"z" * 20_000):
        for expiry in (None, 9):
            data = publish("a/é", payload, retain=False, expiry_s=expiry)

            assert end_of(bytearray(b"??" + data + b"more"), 2) == 2 + len(data)
            assert read_publish(data) == Publish("a/é", payload, 0, False, 0, ())
    assert packed(MessageExpiryInterval=9) in publish("a", b"", retain=True, expiry_s=9)
    assert puback(258) == b"\x40\x02\x01\x02"


def test_a_packet_is_there_when_its_last_byte_is() -> None:
    data = publish("a", BODY, retain=False, expiry_s=None)

    assert [end_of(bytearray(data[:size]), 0) for size in range(len(data))] == [None] * len(data)
    assert end_of(bytearray(data), 0) == len(data)


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x30\x01\x00",  # ends within the topic's length
        b"\x30\x04\x00\x01a\x05",  # ends within its properties
        b"\x30\x05\x00\x01a\x01\x7f",  # a property that there is not
        b"\x30\x04\x00\x01\xff\x00",  # a topic that is no text
        b"\x34\x06\x00\x01a\x00\x01\x00",  # QoS 2
    ],
)
def test_what_is_malformed_is_refused(wrong: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        read_publish(wrong)


def test_what_has_no_length_or_topic_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no length"):
        end_of(bytearray(b"\x30\xff\xff\xff\xff\x01"), 0)
    for topic in ("", "a/+", "#", "a\0"):
        with pytest.raises(ProtocolError, match="topic"):
            publish(topic, b"", retain=False, expiry_s=None)
