"""One MQTT 5 connection: paho on the event loop, no threads, acknowledgement by hand.

paho's own reconnection is not used: every link is a new client on a new socket, so nothing of
a lost link (unsent packets, packet ids, half a packet) leaks into the next.
"""

import asyncio
import contextlib
import functools
import itertools
import math
import zlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from fleet.errors import TransportError
from fleet.transport.base import Acknowledge, Inbound, QoS
from fleet.transport.broker import BrokerSettings
from fleet.transport.paho_client import (
    Identity,
    expiry_properties,
    make_client,
    subscription_properties,
)
from fleet.transport.uplink import Deliver, Ending
from fleet.transport.wire import Wire

TICK_S = 1.0
GOODBYE_S = 1.0
_TAKEN_OVER = 0x8E


class PahoLink:
    """One paho client on one socket; a `Link`."""

    def __init__(
        self, wire: Wire, broker: BrokerSettings, identity: Identity, deliver: Deliver
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._descriptor = wire.fileno()
        self._broker = broker
        self._deliver = deliver
        self._granted: dict[str, QoS] = {}
        self._names: dict[int, str] = {}  # subscription identifier: filter
        self._answers: dict[int, asyncio.Future[ReasonCode]] = {}  # by packet id
        self._is_acknowledged: dict[int, bool] = {}  # by packet id, in the order of arrival
        self._logged_in: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self._max_packet_bytes = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._client = make_client(wire, broker, identity)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_publish = self._on_answer
        self._client.on_subscribe = self._on_answer

    @property
    def ended(self) -> "asyncio.Future[Ending]":
        """See `Link.ended`."""
        return self._ended

    @property
    def filters(self) -> Mapping[str, QoS]:
        """See `Link.filters`."""
        return self._granted

    async def log_in(self) -> None:
        """Sends CONNECT and returns when the broker has taken the client in."""
        self._loop.add_reader(self._descriptor, self._on_readable)
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._client.reconnect()
        self._flush()
        await self._logged_in

    async def publish(
        self, topic: str, payload: bytes, *, qos: QoS, retain: bool, expiry_s: float | None
    ) -> None:
        """See `Transport.publish`."""
        if len(payload) + len(topic) + 16 > self._max_packet_bytes:
            raise TransportError(
                f"payload of {len(payload)} bytes is over the limit of the broker at"
                f" {self._broker.address}: raise its max_packet_size"
            )
        if not self._writable.is_set():
            async with self._deadline("a packet was not taken"):
                await self._writable.wait()
        self._check_up()
        info = self._client.publish(topic, payload, qos, retain, expiry_properties(expiry_s))
        if info.rc != paho.MQTT_ERR_SUCCESS:
            raise TransportError(f"{topic} was not sent: {paho.error_string(info.rc)}")
        answer = self._expect(info.mid) if qos else None
        self._flush()
        if answer is not None:
            async with self._deadline("a payload was not acknowledged"):
                reason = await answer
            if reason.is_failure:
                raise TransportError(f"the broker refused a payload for {topic}: {reason}")

    async def subscribe(self, filters: Mapping[str, QoS]) -> None:
        """See `Link.subscribe`; one SUBSCRIBE for each filter, so that each has a number."""
        self._check_up()
        sent = {pattern: self._send_subscribe(pattern, qos) for pattern, qos in filters.items()}
        self._flush()
        async with self._deadline("a subscription was not granted"):
            for pattern, answer in sent.items():
                reason = await answer
                if reason.is_failure:
                    raise TransportError(f"the broker refused to subscribe {pattern}: {reason}")
                self._granted[pattern] = filters[pattern]

    def unsubscribe(self, filters: Collection[str]) -> None:
        """See `Link.unsubscribe`."""
        for pattern in list(filters):
            self._granted.pop(pattern, None)
            if not self._ended.done():
                self._client.unsubscribe(pattern)
        self._flush()

    async def goodbye(self) -> None:
        """See `Link.goodbye`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._writable.wait()
        if not self._ended.done():
            self._client.disconnect()
            self._flush()
        self._end(Ending("we said goodbye"))
        await self._wire.finish(GOODBYE_S)

    async def abort(self, reason: str) -> None:
        """See `Link.abort`."""
        self._end(Ending(reason))
        self._wire.abort()

    # ── Bytes in and out ──────────────────────────────────────────────────────────────────

    def _on_readable(self) -> None:
        try:
            self._wire.fill()
            while self._wire.has_data and not self._ended.done():
                self._client.loop_read()
        except Exception as error:  # noqa: BLE001 - a bad packet ends the link, not the loop
            self._end(Ending(f"a packet could not be handled: {error!r}"))
        self._flush()

    def _tick(self) -> None:
        self._client.loop_misc()  # sends pings, and notices that they are not answered
        self._flush()
        if not self._ended.done():
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _flush(self) -> None:
        """Writes what waits, now or when the socket has room."""
        if not self._ended.done() and self._client.want_write():
            self._client.loop_write()
        blocked = not self._ended.done() and self._client.want_write()
        if blocked and self._writable.is_set():
            self._writable.clear()
            self._loop.add_writer(self._descriptor, self._flush)
        elif not blocked and not self._writable.is_set():
            self._writable.set()
            self._loop.remove_writer(self._descriptor)

    def _end(self, ending: Ending) -> None:
        if self._ended.done():
            return
        self._ended.set_result(ending)
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._writable.set()
        if self._timer is not None:
            self._timer.cancel()
        waiting: list[asyncio.Future[Any]] = [self._logged_in, *self._answers.values()]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(TransportError(self._sentence(ending)))
        self._answers.clear()

    # ── What paho calls ───────────────────────────────────────────────────────────────────

    def _on_connect(
        self, _client: Any, _userdata: Any, _flags: Any, reason: ReasonCode, given: Any
    ) -> None:
        if reason.is_failure:
            self._end(
                Ending(f"it refused the link: {reason}; check broker.username and password", True)
            )
            return
        self._max_packet_bytes = getattr(given, "MaximumPacketSize", math.inf)
        if not self._logged_in.done():
            self._logged_in.set_result(None)

    def _on_disconnect(
        self, _client: Any, _userdata: Any, flags: Any, reason: ReasonCode, _given: Any
    ) -> None:
        said = flags.is_disconnect_packet_from_server
        why = f"it ended the link: {reason}" if said else "the connection was lost"
        self._end(Ending(why, said, taken_over=said and reason.value == _TAKEN_OVER))

    def _on_message(self, _client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        numbers = getattr(message.properties, "SubscriptionIdentifier", [])
        names = [self._names[number] for number in numbers if number in self._names]
        qos: QoS = 1 if message.qos else 0
        ack: Acknowledge = _nothing
        if qos:
            self._is_acknowledged[message.mid] = False
            ack = functools.partial(self._acknowledge, message.mid)
        self._deliver(
            Inbound(message.topic, bytes(message.payload), message.retain, ack, qos),
            tuple(names) or None,
        )

    def _on_answer(self, _client: Any, _userdata: Any, mid: int, reasons: Any, _given: Any) -> None:
        answer = self._answers.pop(mid, None)
        if answer is not None and not answer.done():
            answer.set_result(reasons[0] if isinstance(reasons, list) else reasons)

    # ── Packets ───────────────────────────────────────────────────────────────────────────

    def _expect(self, mid: int) -> "asyncio.Future[ReasonCode]":
        answer: asyncio.Future[ReasonCode] = self._loop.create_future()
        self._answers[mid] = answer
        return answer

    def _send_subscribe(self, pattern: str, qos: QoS) -> "asyncio.Future[ReasonCode]":
        number = _number(pattern)
        self._names[number] = pattern
        _, mid = self._client.subscribe(
            pattern, options=SubscribeOptions(qos=qos), properties=subscription_properties(number)
        )
        if mid is None:
            raise TransportError(self._sentence(Ending("the connection was lost")))
        return self._expect(mid)

    def _acknowledge(self, mid: int) -> None:
        """Sends PUBACKs in the order of arrival (MQTT 5, section 4.6), as far as they are due.

        rumqttd throws out a client that changes the order.
        """
        if self._ended.done():
            return
        self._is_acknowledged[mid] = True
        due = list(itertools.takewhile(self._is_acknowledged.get, self._is_acknowledged))
        for number in due:
            del self._is_acknowledged[number]
            self._client.ack(number, 1)
        self._flush()

    def _check_up(self) -> None:
        if self._ended.done():
            raise TransportError(self._sentence(self._ended.result()))

    @asynccontextmanager
    async def _deadline(self, failure: str) -> AsyncIterator[None]:
        """A broker that does not answer in time has lost us: the link ends."""
        try:
            async with asyncio.timeout(self._broker.answer_s):
                yield
        except TimeoutError as error:
            ending = Ending(f"{failure} within {self._broker.answer_s:g} s")
            self._end(ending)
            raise TransportError(self._sentence(ending)) from error

    def _sentence(self, ending: Ending) -> str:
        if not self._logged_in.done() and not ending.from_broker:
            return (
                f"no broker at {self._broker.address}; what listens there closed the link before"
                " it spoke MQTT 5: check broker.port and broker.tls.enabled"
            )
        return f"the link to the broker at {self._broker.address} is down: {ending.reason}"


def _nothing() -> None:
    """Acknowledges what needs no acknowledgement."""


def _number(pattern: str) -> int:
    """A subscription identifier that is the same in every link of a session."""
    return 1 + zlib.crc32(pattern.encode()) % 0xFFF_FFFE
