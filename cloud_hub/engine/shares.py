"""How much of the engine's time each node had lately, and who had more than its share; pure.

Alone, a node may have all of it. In company it may have an N-th part among N nodes, or `node_share`
if that is more; beyond it the node pauses even while the engine is idle, since a forward under way
is what the others would wait for.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet.ids import NodeId

WINDOW_S = 1.0  # how long the past counts (the time constant of the sums)
_SHORTEST_PAUSE_S = 0.005
_GONE = 1e-4  # seconds of engine time that are as good as none


@dataclass(slots=True)
class Shares:
    """Sums of engine time by node, which fade."""

    node_share: float
    _at: float = 0.0
    _used: dict[NodeId, float] = field(default_factory=dict)

    def charge(self, tokens: Mapping[NodeId, int], seconds: float) -> None:
        """Splits a forward's time among its nodes, by their tokens."""
        total = sum(tokens.values())
        for node, count in tokens.items():
            self._used[node] = self._used.get(node, 0.0) + seconds * count / total

    def fade(self, now: float) -> None:
        """Lets the past count less."""
        kept = math.exp(-max(now - self._at, 0.0) / WINDOW_S)
        self._at = now
        self._used = {node: s * kept for node, s in self._used.items() if s * kept > _GONE}

    def company(self, nodes: Iterable[NodeId]) -> int:
        """How many nodes were served lately or are among `nodes`."""
        return len(self._used.keys() | set(nodes))

    def allowance(self, company: int) -> float:
        """The part of the time that each of so many nodes may have."""
        return max(1 / max(company, 1), self.node_share)

    def pause_s(self, node: NodeId, allowance: float) -> float:
        """How long the node pauses, if no more of it runs meanwhile; 0: it may go on."""
        used = self._used.get(node, 0.0)
        if used <= allowance * WINDOW_S:
            return 0.0
        return max(WINDOW_S * math.log(used / (allowance * WINDOW_S)), _SHORTEST_PAUSE_S)
