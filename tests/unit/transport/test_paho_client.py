"""paho's properties, made light, say what they said."""

from typing import Any

import pytest
from paho.mqtt import MQTTException, properties
from paho.mqtt.packettypes import PacketTypes

import fleet.transport.paho_client  # noqa: F401 - makes them light

Properties: Any = properties.Properties


def test_properties_read_what_was_written_each_on_its_own() -> None:
    written = Properties(PacketTypes.PUBLISH)
    written.MessageExpiryInterval = 7
    written.SubscriptionIdentifier = 300
    written.UserProperty = ("name", "value")
    data = written.pack()

    first, second = Properties(PacketTypes.PUBLISH), Properties(PacketTypes.PUBLISH)
    assert first.unpack(data + b"payload")[1] == len(data)
    first.UserProperty = ("other", "value")
    second.unpack(data)

    assert second.json() == written.json()
    assert first.UserProperty == [("name", "value"), ("other", "value")]
    assert Properties(PacketTypes.PUBLISH).isEmpty()


def test_long_and_wrong_properties_are_read_as_paho_reads_them() -> None:
    written = Properties(PacketTypes.PUBLISH)
    written.UserProperty = ("name", "v" * 500)
    found = Properties(PacketTypes.PUBLISH)

    found.unpack(written.pack())

    assert found.UserProperty == [("name", "v" * 500)]
    with pytest.raises(MQTTException, match="does not apply"):
        Properties(PacketTypes.CONNECT).SubscriptionIdentifier = 1
    with pytest.raises(KeyError):
        Properties(PacketTypes.PUBLISH).unpack(b"\x02\x7f\x01")
