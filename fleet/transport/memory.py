"""A broker inside the process, for unit tests and virtual time, with the semantics of MQTT 5.

Nothing is on disk and nothing takes time: a payload is in the takers' queues when `publish`
returns. A test stops the broker, cuts a client's link and mends it by hand.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from fleet.errors import TransportError
from fleet.transport.base import Acknowledge, Inbound, QoS, Will
from fleet.transport.fanout import Counters, Fanout, check_filters, matches, share_group
from fleet.transport.interests import Interests, is_wild


@dataclass(frozen=True, slots=True)
class _Payload:
    topic: str
    payload: bytes
    qos: QoS


@dataclass(slots=True, eq=False)
class _Session:
    """What the broker keeps for one client id, beyond a link if `expiry_s` says so."""

    expiry_s: int
    filters: dict[str, QoS] = field(default_factory=dict)
    unacked: "OrderedDict[int, tuple[_Payload, str]]" = field(default_factory=OrderedDict)
    transport: "MemoryTransport | None" = None  # while its link is up


class MemoryBroker:
    """Delivers between its transports: retained payloads, wills, `$share`, QoS 1 until acked."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._interests = Interests[_Session]()
        self._retained: dict[str, _Payload] = {}
        self._turns: dict[str, int] = {}  # shared filter: deliveries so far
        self._clients: list[MemoryTransport] = []
        self._next = 0
        self.is_up = True

    def connect(
        self, client_id: str, will: Will | None = None, *, session_expiry_s: int = 0
    ) -> "MemoryTransport":
        """A transport whose link is up, or comes up with the broker; `async with` says goodbye.

        A second transport of the same client id takes the first one's link away.
        """
        client = MemoryTransport(self, client_id, will, session_expiry_s)
        self._clients.append(client)
        self._link(client)
        return client

    def stop(self) -> None:
        """The broker dies: links go down, and sessions and retained payloads are forgotten."""
        self.is_up = False
        for client in self._clients:
            client._set_connected(False)
        self._sessions.clear()
        self._interests = Interests[_Session]()
        self._retained.clear()

    def start(self) -> None:
        """The broker is back, empty; clients connect and subscribe again."""
        self.is_up = True
        for client in self._clients:
            self._link(client)

    def cut(self, client_id: str) -> None:
        """The link of a client breaks without a goodbye: its will is published."""
        session = self._sessions.get(client_id)
        if session is not None and session.transport is not None:
            self._unlink(session.transport, says_goodbye=False)

    def mend(self, client_id: str) -> None:
        """The client's link comes back."""
        for client in self._clients:
            if client.client_id == client_id:
                self._link(client)

    # ── For transports ────────────────────────────────────────────────────────────────────

    def _link(self, client: "MemoryTransport") -> None:
        if not self.is_up or client.is_connected:
            return
        old = self._sessions.get(client.client_id)
        if old is not None and old.transport is not None:
            self._unlink(old.transport, says_goodbye=False)
            old = self._sessions.get(client.client_id)
        if old is not None and not client.session_expiry_s:
            self._forget(old)
            old = None
        session = old or _Session(0)
        session.expiry_s = client.session_expiry_s
        session.transport = client
        self._sessions[client.client_id] = session
        client._set_connected(True)
        waiting, session.unacked = session.unacked, OrderedDict()
        for payload, pattern in waiting.values():
            self._send(session, payload, pattern, retained=False)
        for pattern, qos in client._fanout.filters.items():
            self._subscribe(client, pattern, qos)

    def _unlink(self, client: "MemoryTransport", *, says_goodbye: bool) -> None:
        session = self._sessions.get(client.client_id)
        client._set_connected(False)
        if session is None or session.transport is not client:
            return
        session.transport = None
        if not session.expiry_s:
            del self._sessions[client.client_id]
            self._forget(session)
            self._hand_on(session)
        if client.will is not None and not says_goodbye:
            self._publish(_Payload(client.will.topic, client.will.payload, 1), retain=True)

    def _forget(self, gone: _Session) -> None:
        for pattern in gone.filters:
            self._interests.discard(pattern, gone)

    def _hand_on(self, gone: _Session) -> None:
        """Unacknowledged payloads of a shared subscription go to the rest of its group."""
        for payload, pattern in gone.unacked.values():
            if share_group(pattern) is not None:
                self._send_shared(pattern, payload)

    def _subscribe(self, client: "MemoryTransport", pattern: str, qos: QoS) -> None:
        session = self._sessions[client.client_id]
        session.filters[pattern] = qos
        self._interests.add(pattern, session)
        for payload in self._retained_for(pattern):
            self._send(session, payload, pattern, retained=True)

    def _unsubscribe(self, client: "MemoryTransport", pattern: str) -> None:
        session = self._sessions.get(client.client_id)
        if session is not None:
            session.filters.pop(pattern, None)
            self._interests.discard(pattern, session)

    def _retained_for(self, pattern: str) -> list[_Payload]:
        if share_group(pattern) is not None:
            return []
        if not is_wild(pattern):
            return [self._retained[pattern]] if pattern in self._retained else []
        return [payload for topic, payload in self._retained.items() if matches(pattern, topic)]

    def _publish(self, payload: _Payload, *, retain: bool) -> None:
        if retain and payload.payload:
            self._retained[payload.topic] = payload
        elif retain:
            self._retained.pop(payload.topic, None)
        for pattern in self._interests.filters_of(payload.topic):
            if share_group(pattern) is not None:
                self._send_shared(pattern, payload)
                continue
            for session in self._interests.takers(pattern):
                self._send(session, payload, pattern, retained=False)

    def _send_shared(self, pattern: str, payload: _Payload) -> None:
        """The members of a group take turns; those whose link is up come first."""
        members = self._interests.takers(pattern)
        members = [s for s in members if s.transport is not None] or members
        if members:
            turn = self._turns.get(pattern, 0)
            self._turns[pattern] = turn + 1
            self._send(members[turn % len(members)], payload, pattern, retained=False)

    def _send(self, session: _Session, payload: _Payload, pattern: str, *, retained: bool) -> None:
        qos = min(payload.qos, session.filters.get(pattern, payload.qos))
        if session.transport is None and not qos:
            return
        ack = self._unacked(session, payload, pattern) if qos else _nothing
        if session.transport is not None:
            session.transport._fanout.deliver(
                Inbound(payload.topic, payload.payload, retained, ack, qos), (pattern,)
            )

    def _unacked(self, session: _Session, payload: _Payload, pattern: str) -> Acknowledge:
        """Keeps a payload until what is returned is called, over the link that stands now."""
        number = self._next = self._next + 1
        session.unacked[number] = (payload, pattern)
        client = session.transport

        def ack() -> None:
            if session.transport is client:
                session.unacked.pop(number, None)

        return ack


def _nothing() -> None:
    """Acknowledges what needs no acknowledgement."""


class MemoryTransport:
    """One client of a `MemoryBroker`; a `Transport`."""

    def __init__(
        self, broker: MemoryBroker, client_id: str, will: Will | None, session_expiry_s: int
    ) -> None:
        self.client_id = client_id
        self.will = will
        self.session_expiry_s = session_expiry_s
        self.counters = Counters()
        self.is_connected = False  # see `Transport.is_connected`
        self._broker = broker
        self._fanout = Fanout(self.counters)
        self._changed: dict[bool, asyncio.Event] = {True: asyncio.Event(), False: asyncio.Event()}
        self._changed[False].set()

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: QoS,
        retain: bool = False,
        expiry_s: float | None = None,  # noqa: ARG002 - nothing takes time here
    ) -> None:
        """See `Transport.publish`."""
        if not self.is_connected:
            raise TransportError("the link to the broker is down")
        self._broker._publish(_Payload(topic, bytes(payload), qos), retain=retain)
        await asyncio.sleep(0)

    @asynccontextmanager
    async def subscribe(
        self, *filters: str, qos: QoS, limit: int
    ) -> AsyncIterator[AsyncIterator[Inbound]]:
        """See `Transport.subscribe`."""
        check_filters(filters)
        try:
            with self._fanout.open(filters, qos, limit) as subscription:
                for pattern in filters if self.is_connected else ():
                    self._broker._subscribe(self, pattern, self._fanout.filters[pattern])
                yield subscription
        finally:
            for pattern in set(filters) - set(self._fanout.filters):
                self._broker._unsubscribe(self, pattern)

    async def wait_connected(self, connected: bool = True) -> None:
        """See `Transport.wait_connected`."""
        await self._changed[connected].wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves with a goodbye: the will is not published."""
        self._broker._unlink(self, says_goodbye=True)
        if self in self._broker._clients:
            self._broker._clients.remove(self)

    def _set_connected(self, connected: bool) -> None:
        if connected == self.is_connected:
            return
        self.is_connected = connected
        self._changed[connected].set()
        self._changed[not connected].clear()
        if connected:
            self.counters.connects += 1
        else:
            self.counters.losses += 1
            self._fanout.link_lost()
