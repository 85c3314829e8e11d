"""Warnings about what nodes send: counted always, logged once a minute for each node and kind."""

from collections import Counter
from collections.abc import Callable

from fleet.logs import get_logger

log = get_logger(__name__)

_QUIET_S = 60.0
_MOST_KINDS = 4096  # beyond it the oldest half is forgotten, and may be logged again


class Notices:
    """Counts and logs what was wrong with payloads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._said: dict[tuple[str, str], float] = {}

    def warn(self, event: str, node: str, reason: str) -> None:
        """Counts `event` and logs it, unless the node's last one is less than a minute old."""
        self.counts[event] += 1
        now = self._clock()
        if now - self._said.get((event, node), now - _QUIET_S) >= _QUIET_S:
            log.warning(event, node=node, reason=reason, so_far=self.counts[event])
            self._said[event, node] = now
        if len(self._said) > _MOST_KINDS:
            for key in list(self._said)[: _MOST_KINDS // 2]:
                del self._said[key]
