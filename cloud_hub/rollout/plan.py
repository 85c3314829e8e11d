"""What a canary's figures say: wait, widen, or roll back; pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cloud_hub.store.rollouts import Figures
from fleet.definitions import wilson

Step = Literal["wait", "widen", "roll back"]

# Standard deviations from which a rate is surely worse: figures are looked at many times a rollout.
_SURE = 3.3
# Of each side, before their spread says anything.
_LEAST_PICTURES = 5


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step, and the sentence that says why."""

    step: Step
    why: str


def canaries(nodes: Sequence[str], version: str, share: float) -> list[str]:
    """A share of the nodes, at least one; drawn anew by each version, the same for the same one."""
    drawn = sorted(nodes, key=lambda node: hashlib.sha256(f"{version} {node}".encode()).digest())
    return sorted(drawn[: max(round(share * len(drawn)), 1)])


def decide(canary: Figures, rest: Figures, least: int) -> Decision:
    """Rolls back as soon as a rate is surely worse than the rest's (Wilson's intervals at 99.9% are
    apart), widens once `least` tokens were judged and checked on the canary and neither is.

    Tokens of a picture are alike, so counts are worth as many independent ones as the spread of
    corrections over pictures says. Without a rest to compare with there is nothing to be worse
    than, and a few pictures tell nothing.
    """
    if min(canary.pictures, rest.pictures) >= _LEAST_PICTURES:
        effect = design_effect(canary, rest)
        falls = [_interval(side.corrected, side.judged, effect) for side in (canary, rest)]
        misses = [_interval(side.mismatched, side.checked, effect) for side in (canary, rest)]
        for name, (new, old) in (("corrections", falls), ("false accepts", misses)):
            if new[0] > old[1]:
                at = f"at least {new[0]:.1%} on the canary, at most {old[1]:.1%} elsewhere"
                return Decision("roll back", f"{name} are {at}")
    have = min(canary.judged, canary.checked)
    if have < least:
        return Decision("wait", f"{have} of {least} tokens were judged and checked on the canary")
    if canary.pictures < _LEAST_PICTURES:
        seen = f"{canary.pictures} of {_LEAST_PICTURES}"
        return Decision("wait", f"{seen} pictures with judged tokens were made on the canary")
    return Decision("widen", f"no rate is surely worse after {have} tokens")


def design_effect(*sides: Figures) -> float:
    """How many judged tokens are worth one independent one, at least 1 (Kish 1965): the variance of
    the corrections over pictures, each side about its own rate, over that of independent tokens."""
    found = independent = 0.0
    for side in sides:
        rate = side.corrected / side.judged
        found += side.deviation * side.pictures / (side.pictures - 1)
        independent += rate * (1 - rate) * side.judged
    return max(found / independent, 1.0) if independent else 1.0


def _interval(hits: int, count: int, effect: float) -> tuple[float, float]:
    return wilson(hits / effect, count / effect, _SURE)
