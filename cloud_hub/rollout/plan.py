"""What a canary's figures say: wait, widen, or roll back; pure."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cloud_hub.store.rollouts import Figures
from fleet.definitions import wilson

Step = Literal["wait", "widen", "roll back"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step, and the sentence that says why."""

    step: Step
    why: str


def canaries(nodes: Sequence[str], version: str, share: float) -> list[str]:
    """A share of the nodes, at least one; drawn anew by each version, the same for the same one."""
    drawn = sorted(nodes, key=lambda node: hashlib.sha256(f"{version} {node}".encode()).digest())
    return sorted(drawn[: max(math.ceil(share * len(drawn)), 1)])


def decide(canary: Figures, rest: Figures, least: int) -> Decision:
    """Rolls back as soon as a rate is surely worse than the rest's (the 95% intervals of Wilson are
    apart), widens once `least` tokens were judged and checked on the canary and neither is.

    Without a rest to compare with there is nothing to be worse than.
    """
    falls = wilson(canary.corrected, canary.judged), wilson(rest.corrected, rest.judged)
    misses = wilson(canary.mismatched, canary.checked), wilson(rest.mismatched, rest.checked)
    for name, (new, old) in (("corrections", falls), ("false accepts", misses)):
        if new[0] > old[1]:
            why = f"{name} are at least {new[0]:.1%} on the canary, at most {old[1]:.1%} elsewhere"
            return Decision("roll back", why)
    have = min(canary.judged, canary.checked)
    if have < least:
        return Decision("wait", f"{have} of {least} tokens were judged and checked on the canary")
    return Decision("widen", f"no rate is surely worse after {have} tokens")
