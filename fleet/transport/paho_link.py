"""One MQTT 5 connection: paho on the event loop, no threads, acknowledgement by hand.

Payloads that arrive, their acknowledgements and QoS 0 payloads pass paho by (`packets.py`); what
is sent leaves together at the end of the event loop's turn.

paho's own reconnection is not used: every link is a new client on a new socket, so nothing of
a lost link (unsent packets, packet ids, half a packet) leaks into the next.
"""

import asyncio
import contextlib
import math
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from fleet.errors import TransportError
from fleet.transport import packets
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
_TOGETHER_BYTES = 1 << 16  # that wait for the end of a turn; beyond it they are written at once


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
        self._arrivals: deque[_Arrival] = deque()  # not acknowledged to the broker, in order
        self._turn: asyncio.Handle | None = None  # at whose end what waits is sent
        self._logged_in: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self._writable = asyncio.Event()
        self._writable.set()
        self._max_packet_bytes = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._client = make_client(wire, broker, identity)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
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
        if qos:
            await self._publish_surely(topic, payload, retain, expiry_s)
        else:
            self._send(packets.publish(topic, payload, retain=retain, expiry_s=_whole(expiry_s)))

    async def _publish_surely(
        self, topic: str, payload: bytes, retain: bool, expiry_s: float | None
    ) -> None:
        properties = expiry_properties(_whole(expiry_s))
        info = self._client.publish(topic, payload, 1, retain, properties)
        if info.rc != paho.MQTT_ERR_SUCCESS:
            raise TransportError(f"{topic} was not sent: {paho.error_string(info.rc)}")
        answer = self._expect(info.mid)
        self._flush_soon()
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
            while not self._ended.done() and (packet := self._wire.packet()) is not None:
                if packet[0] >> 4 == packets.PUBLISH:
                    self._arrive(packets.read_publish(packet))
                else:
                    self._wire.offer(packet)
                    self._client.loop_read()
            if self._wire.has_ended and not self._ended.done():
                self._client.loop_read()  # it notices, and knows whether we wanted it
        except Exception as error:  # noqa: BLE001 - a bad packet ends the link, not the loop
            self._end(Ending(f"a packet could not be handled: {error!r}"))
        self._flush()

    def _tick(self) -> None:
        self._client.loop_misc()  # sends pings, and notices that they are not answered
        self._flush()
        if not self._ended.done():
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _send(self, packet: bytes) -> None:
        self._wire.send(packet)
        if self._wire.unsent < _TOGETHER_BYTES:
            self._flush_soon()
        else:
            self._flush()

    def _flush_soon(self) -> None:
        """Writes what waits when all who run in this turn of the loop have had their say."""
        if self._turn is None:
            self._turn = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Writes what waits, now or when the socket has room."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if not self._ended.done() and self._client.want_write():
            self._client.loop_write()
        if not self._ended.done():
            try:
                self._wire.flush()
            except OSError:
                self._end(Ending("the connection was lost"))
        blocked = not self._ended.done() and self._wire.unsent > 0
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

    def _arrive(self, publish: packets.Publish) -> None:
        topic, payload, qos, retained, mid, numbers = publish
        names = tuple(self._names[number] for number in numbers if number in self._names)
        ack: Acknowledge = _nothing
        if qos:
            ack = arrival = _Arrival(mid, self._acknowledge)
            self._arrivals.append(arrival)
        self._deliver(Inbound(topic, payload, retained, ack, qos), names or None)

    def _acknowledge(self) -> None:
        """Sends PUBACKs in the order of arrival (MQTT 5, section 4.6), as far as they are due.

        rumqttd throws out a client that changes the order.
        """
        while self._arrivals and self._arrivals[0].is_done and not self._ended.done():
            self._send(packets.puback(self._arrivals.popleft().mid))

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


class _Arrival:
    """A payload of QoS 1, until it is acknowledged; calling it does that."""

    __slots__ = ("_acknowledge", "is_done", "mid")

    def __init__(self, mid: int, acknowledge: Callable[[], None]) -> None:
        self.mid = mid
        self.is_done = False
        self._acknowledge = acknowledge

    def __call__(self) -> None:
        self.is_done = True
        self._acknowledge()


def _whole(expiry_s: float | None) -> int | None:
    """How long the broker may keep a payload, in whole seconds from 1."""
    return None if expiry_s is None else max(1, math.ceil(expiry_s))


def _nothing() -> None:
    """Acknowledges what needs no acknowledgement."""


def _number(pattern: str) -> int:
    """A subscription identifier that is the same in every link of a session."""
    return 1 + zlib.crc32(pattern.encode()) % 0xFFF_FFFE
