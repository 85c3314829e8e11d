"""Shares one client's arrivals among its subscriptions, each with a bounded queue of its own.

A full queue drops its oldest QoS 0 payload (counted). QoS 1 payloads stay unacknowledged
instead, and the client's receive maximum holds the broker back; once their link is lost, no
acknowledgement can reach the broker any more and they may be dropped like the others.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fleet.errors import TransportError
from fleet.transport.base import Acknowledge, Inbound, QoS
from fleet.transport.bell import Bell

_SHARE = "$share/"
_TOPICS_KEPT = 1 << 12  # of one client, whose takers are known


def without_share(pattern: str) -> str:
    """The topic filter inside `$share/<group>/<filter>`, or `pattern` itself."""
    return pattern.split("/", 2)[2] if pattern.startswith(_SHARE) else pattern


def share_group(pattern: str) -> str | None:
    """The group of a shared subscription, or None."""
    return pattern.split("/", 2)[1] if pattern.startswith(_SHARE) else None


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic filter, shared or not, selects `topic` (MQTT 5, section 4.7)."""
    wanted, levels = without_share(pattern).split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in {"+", "#"}:
        return False
    for position, level in enumerate(wanted):
        if level == "#":
            return True
        if position >= len(levels) or level not in {"+", levels[position]}:
            return False
    return len(wanted) == len(levels)


def check_filters(patterns: Collection[str]) -> None:
    """Refuses what no broker accepts.

    Raises:
        TransportError: One of `patterns` is not a topic filter.
    """
    for pattern in patterns:
        group, _, rest = pattern.removeprefix(_SHARE).partition("/")
        is_shared = pattern.startswith(_SHARE)
        levels = (rest if is_shared else pattern).split("/")
        wild = [level for level in levels if len(level) > 1 and set(level) & set("+#")]
        has_inner_hash = "#" in levels[:-1]
        if levels == [""] or wild or has_inner_hash or (is_shared and not group):
            raise TransportError(f"{pattern!r} is not a topic filter")


@dataclass(slots=True)
class Counters:
    """What one client's link has seen."""

    connects: int = 0
    losses: int = 0
    dropped: int = 0  # payloads that a full queue let go
    unclaimed: int = 0  # payloads that no subscription wanted any more


class Subscription(AsyncIterator[Inbound]):
    """Payloads of one `subscribe`, in the order of their arrival; one task iterates."""

    def __init__(
        self, filters: tuple[str, ...], qos: QoS, limit: int, on_drop: Callable[[], None]
    ) -> None:
        self.filters = filters
        self.qos = qos
        self._limit = limit
        self._on_drop = on_drop
        self._waiting: deque[_Waiting] = deque()
        self._arrived = Bell()
        self._is_open = True

    def takes(self, topic: str, selected: Collection[str] | None) -> bool:
        """Whether this copy of a payload is for this subscription.

        A broker sends one copy for each filter that selects the topic and names the filter
        (`selected`). Of several copies the subscription takes the one of its first such
        filter; copies of its shared filters are deliveries of their own.
        """
        mine = [pattern for pattern in self.filters if matches(pattern, topic)]
        if selected is None or not mine:
            return bool(mine)
        first = next((pattern for pattern in mine if share_group(pattern) is None), None)
        return any(
            pattern in selected
            for pattern in mine
            if pattern == first or share_group(pattern) is not None
        )

    def put(self, inbound: Inbound) -> None:
        """Queues a payload; see the module docstring for what happens when it is full."""
        if len(self._waiting) >= self._limit and not self._make_room() and inbound.qos == 0:
            self._on_drop()
            return
        self._waiting.append(_Waiting(inbound, is_droppable=inbound.qos == 0))
        self._arrived.ring()

    def _make_room(self) -> bool:
        for position, waiting in enumerate(self._waiting):
            if waiting.is_droppable:
                del self._waiting[position]
                self._on_drop()
                return True
        return False

    def link_lost(self) -> None:
        """What waits stays, but may be dropped from now on."""
        for waiting in self._waiting:
            waiting.is_droppable = True

    def close(self) -> None:
        """Ends the iteration after what waits."""
        self._is_open = False
        self._arrived.ring()

    async def __anext__(self) -> Inbound:
        while not self._waiting:
            if not self._is_open:
                raise StopAsyncIteration
            await self._arrived.wait()
        return self._waiting.popleft().inbound


@dataclass(slots=True)
class _Waiting:
    inbound: Inbound
    is_droppable: bool


class Fanout:
    """All subscriptions of one client."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._subscriptions: list[Subscription] = []
        # By topic and the filters that the broker named: found once, until a subscription
        # comes or goes.
        self._takers: dict[tuple[str, tuple[str, ...] | None], list[Subscription]] = {}

    @contextmanager
    def open(self, filters: tuple[str, ...], qos: QoS, limit: int) -> Iterator[Subscription]:
        """A subscription that takes part until the context ends."""
        subscription = Subscription(filters, qos, limit, self._count_drop)
        self._subscriptions.append(subscription)
        self._takers.clear()
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)
            self._takers.clear()
            subscription.close()

    @property
    def filters(self) -> dict[str, QoS]:
        """Every filter in force, with the highest QoS that a subscription asks for."""
        wanted: dict[str, QoS] = {}
        for subscription in self._subscriptions:
            for pattern in subscription.filters:
                wanted[pattern] = max(wanted.get(pattern, 0), subscription.qos)
        return wanted

    def deliver(self, arrival: Inbound, selected: tuple[str, ...] | None) -> None:
        """Gives a payload to every subscription it is for.

        `selected` names the filters for which the broker sent this copy, None if it does not
        say. The broker's acknowledgement goes out when every taker has given its own, or at
        once when there is none: what nobody wants must not come again.
        """
        takers = self._takers_of(arrival.topic, selected)
        if not takers:
            self._counters.unclaimed += not self._is_known(arrival.topic)
            arrival.ack()
            return
        if len(takers) == 1:  # by far the most
            takers[0].put(arrival)
            return
        shared = _SharedAck(len(takers), arrival.ack)
        for taker in takers:
            taker.put(replace(arrival, ack=shared.ticket()))

    def link_lost(self) -> None:
        """Tells every subscription that what waits can no longer be acknowledged."""
        for subscription in self._subscriptions:
            subscription.link_lost()

    def _takers_of(self, topic: str, selected: tuple[str, ...] | None) -> list[Subscription]:
        takers = self._takers.get((topic, selected))
        if takers is None:
            if len(self._takers) >= _TOPICS_KEPT:
                self._takers.clear()
            takers = [each for each in self._subscriptions if each.takes(topic, selected)]
            self._takers[topic, selected] = takers
        return takers

    def _is_known(self, topic: str) -> bool:
        return any(matches(pattern, topic) for pattern in self.filters)

    def _count_drop(self) -> None:
        self._counters.dropped += 1


class _SharedAck:
    """Acknowledges once, when all tickets are in."""

    def __init__(self, tickets: int, ack: Acknowledge) -> None:
        self._missing = tickets
        self._ack = ack

    def ticket(self) -> Acknowledge:
        """One taker's acknowledgement; calling it again does nothing."""
        is_open = True

        def acknowledge() -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self._missing -= 1
                if not self._missing:
                    self._ack()

        return acknowledge
