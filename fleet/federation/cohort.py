"""Who takes part in a round: pure arithmetic on what nodes say they could do."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.federation.ledger import Member, Participant


@dataclass(frozen=True, slots=True)
class Shape:
    """What must be the same on all nodes of a cohort: the network and the head on it."""

    backbone: str
    head: str  # version
    codes: int
    dim: int
    radius_rank: int


@dataclass(frozen=True, slots=True)
class Ability:
    """What a node says it could train."""

    node: int
    shape: Shape
    samples: int
    held_out: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a round needs of its nodes."""

    head: str
    least_samples: int
    most_nodes: int
    seed: int


def choose(
    able: Sequence[Ability], unable: Mapping[int, str], wanted: Wanted
) -> tuple[tuple[Member, ...], tuple[Participant, ...]]:
    """The cohort, by node, and everybody else with the reason.

    All nodes of a cohort have the round's head on one network. Where several networks carry it,
    the one that most nodes have takes part; the others are named, and need a round of their own.
    """
    aside = {**unable, **{each.node: why for each in able if (why := _unfit(each, wanted))}}
    fitting = sorted((each for each in able if each.node not in aside), key=lambda each: each.node)
    networks = Counter(each.shape for each in fitting)
    most = max(networks, key=lambda shape: (networks[shape], shape.backbone), default=None)
    for each in fitting:
        if each.shape != most:
            aside[each.node] = f"has network {each.shape.backbone}: needs a round of its own"
    alike = [each for each in fitting if each.shape == most]
    chosen = _draw(alike, wanted)
    for each in alike:
        if each not in chosen:
            aside[each.node] = f"not drawn: {wanted.most_nodes} of {len(alike)} take part"
    members = tuple(Member(each.node, each.samples) for each in chosen)
    others = sorted(aside.items())
    return members, tuple(Participant(node, "set aside", why) for node, why in others)


def _unfit(ability: Ability, wanted: Wanted) -> str:
    if ability.shape.head != wanted.head:
        return f"has head {ability.shape.head}: needs a round of its own"
    if ability.samples < wanted.least_samples or ability.held_out < 1:
        return f"has {ability.samples} samples, {wanted.least_samples} are needed"
    return ""


def _draw(alike: Sequence[Ability], wanted: Wanted) -> list[Ability]:
    if len(alike) <= wanted.most_nodes:
        return list(alike)
    rng = np.random.default_rng(wanted.seed)
    places = sorted(rng.permutation(len(alike))[: wanted.most_nodes])
    return [alike[place] for place in places]
