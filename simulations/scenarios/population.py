"""The fleet that a scenario and a seed stand for: devices, and when each is asked for what; pure.

Every device draws from a stream of its own, so one more device changes nothing for the others'
wishes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.ids import NodeId
from fleet.transport.link import LinkProfile, Outage
from simulations.scenarios.scenario import Arrivals, Captions, Kind, Link, Scenario

_SEED_BITS = 62

Member = TypeVar("Member", Kind, Link)


@dataclass(frozen=True, slots=True)
class Asked:
    """A picture that somebody wants of a device, `at_s` seconds after the beginning."""

    at_s: float
    caption: str
    seed: int


@dataclass(frozen=True, slots=True)
class Resident:
    """One device of the fleet."""

    node: NodeId
    kind: Kind
    link: LinkProfile  # with this device's outages
    wishes: tuple[Asked, ...]


def population(scenario: Scenario, seed: int) -> tuple[Resident, ...]:
    """All devices; shares are met as closely as whole devices allow."""
    places = np.random.default_rng([seed, 0]).permutation(scenario.devices)
    links = np.random.default_rng([seed, 1]).permutation(scenario.devices)
    width = len(str(scenario.devices - 1))
    return tuple(
        _resident(
            scenario,
            NodeId(f"node-{index:0{width}}"),
            _pick(scenario.kinds, (places[index] + 0.5) / scenario.devices),
            _pick(scenario.links, (links[index] + 0.5) / scenario.devices),
            np.random.default_rng([seed, 2, index]),
        )
        for index in range(scenario.devices)
    )


def struck(scenario: Scenario, seed: int, index: int) -> frozenset[int]:
    """The places in the fleet of the devices that a scenario's fault falls on."""
    share: float | None = getattr(scenario.faults[index], "share", None)
    if share is None:
        return frozenset()
    count = max(round(share * scenario.devices), 1)
    rng = np.random.default_rng([seed, 3, index])
    return frozenset(rng.choice(scenario.devices, count, replace=False).tolist())


def _resident(
    scenario: Scenario, node: NodeId, kind: Kind, link: Link, rng: np.random.Generator
) -> Resident:
    times = _times(scenario.arrivals, scenario.seconds, rng)
    captions = _captions(scenario.captions, len(times), rng)
    seeds = rng.integers(1 << _SEED_BITS, size=len(times))
    wishes = zip(times, captions, seeds, strict=True)
    return Resident(
        node,
        kind,
        replace(link.profile, outages=_outages(link, scenario.seconds, rng)),
        tuple(Asked(at_s, caption, int(seed)) for at_s, caption, seed in wishes),
    )


def _pick(members: Sequence[Member], place: float) -> Member:
    """The member in whose share of [0, 1) the place lies."""
    ends = np.cumsum([member.share for member in members])
    return members[min(int(np.searchsorted(ends, place, side="right")), len(members) - 1)]


def _times(arrivals: Arrivals, seconds: float, rng: np.random.Generator) -> list[float]:
    """Moments in [0, seconds), of a Poisson process or evenly spaced from a drawn beginning.

    A surge makes the process's own time go faster (time rescaling).
    """
    rate = arrivals.per_minute / 60
    times, own = [], rng.random() / rate if arrivals.law == "steady" else rng.exponential(1 / rate)
    while (at_s := _rescaled(arrivals, own)) < seconds:
        times.append(at_s)
        own += 1 / rate if arrivals.law == "steady" else rng.exponential(1 / rate)
    return times


def _rescaled(arrivals: Arrivals, own_s: float) -> float:
    """The moment at which so many seconds of the process's own time have passed."""
    now = 0.0
    for surge in sorted(arrivals.surges, key=lambda surge: surge.at_s):
        calm = max(surge.at_s - now, 0.0)
        if own_s <= calm:
            break
        own_s, now = own_s - calm, now + calm
        if own_s <= surge.for_s * surge.times:
            return now + own_s / surge.times
        own_s, now = own_s - surge.for_s * surge.times, now + surge.for_s
    return now + own_s


def _captions(captions: Captions, count: int, rng: np.random.Generator) -> list[str]:
    """Captions by this device's taste."""
    themes = list(captions.themes.values())
    styles = _taste(captions.concentration, len(captions.styles), rng)
    preferred = _taste(captions.concentration, len(themes), rng)
    drawn = []
    for _ in range(count):
        style = captions.styles[rng.choice(len(captions.styles), p=styles)]
        theme = themes[rng.choice(len(themes), p=preferred)]
        drawn.append(f"{style}: {theme[rng.integers(len(theme))]}")
    return drawn


def _taste(concentration: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.dirichlet([concentration] * count)


def _outages(link: Link, seconds: float, rng: np.random.Generator) -> tuple[Outage, ...]:
    """Outages that begin at the events of a Poisson process, of exponential length."""
    outages: list[Outage] = []
    if not link.outages_per_hour:
        return ()
    at_s = rng.exponential(3600 / link.outages_per_hour)
    while at_s < seconds:
        length_s = rng.exponential(link.outage_s)
        outages.append(Outage(at_s, length_s))
        at_s += length_s + rng.exponential(3600 / link.outages_per_hour)
    return tuple(outages)
