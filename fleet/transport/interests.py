"""Who wants which topic: one payload costs as much with a thousand clients as with ten."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from fleet.transport.fanout import matches, share_group

T = TypeVar("T", bound=Hashable)

_TOPICS_KEPT = 1 << 16  # whose wild filters are known


def is_wild(pattern: str) -> bool:
    """Whether a filter is more than one topic: it has a wildcard, or is shared."""
    return "+" in pattern or "#" in pattern or share_group(pattern) is not None


class Interests(Generic[T]):
    """The filters of many takers; those that are a plain topic are found without a search."""

    def __init__(self) -> None:
        self._plain: dict[str, dict[T, None]] = {}
        self._wild: dict[str, dict[T, None]] = {}
        self._selecting: dict[str, list[str]] = {}  # by topic: wild filters, found once

    def add(self, pattern: str, taker: T) -> None:
        """Notes a filter of a taker."""
        home = self._home(pattern)
        if pattern not in home:
            self._selecting.clear()
        home.setdefault(pattern, {})[taker] = None

    def discard(self, pattern: str, taker: T) -> None:
        """Forgets it."""
        home = self._home(pattern)
        takers = home.get(pattern, {})
        takers.pop(taker, None)
        if not takers:
            home.pop(pattern, None)
            self._selecting.clear()

    def takers(self, pattern: str) -> list[T]:
        """Whose filter this is, in the order in which they came."""
        return list(self._plain.get(pattern) or self._wild.get(pattern) or ())

    def filters_of(self, topic: str) -> list[str]:
        """The filters that select a topic."""
        return ([topic] if topic in self._plain else []) + self._wild_of(topic)

    def _wild_of(self, topic: str) -> list[str]:
        found = self._selecting.get(topic)
        if found is None:
            if len(self._selecting) >= _TOPICS_KEPT:
                self._selecting.clear()
            found = [pattern for pattern in self._wild if matches(pattern, topic)]
            self._selecting[topic] = found
        return found

    def _home(self, pattern: str) -> dict[str, dict[T, None]]:
        return self._wild if is_wild(pattern) else self._plain
