"""Faults of links on the real clock: they fall on the TCP between an agent and the broker."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from simulations.real.relay import Relay
from simulations.scenarios.faults import CutLinks, LimitLinks, SlowLinks, SwallowLinks
from simulations.scenarios.population import Resident, struck
from simulations.scenarios.scenario import Scenario

LinkFault = CutLinks | SwallowLinks | SlowLinks | LimitLinks


def on_links(scenario: Scenario, seed: int) -> set[int]:
    """The places of the devices whose links a fault falls on: they take a relay."""
    return {
        place
        for index, fault in enumerate(scenario.faults)
        if isinstance(fault, LinkFault)
        for place in struck(scenario, seed, index)
    }


@asynccontextmanager
async def disturbed(
    fault: LinkFault, links: Sequence[tuple[Resident, Relay]]
) -> AsyncIterator[None]:
    """The links of some devices, disturbed until the context ends."""
    for resident, relay in links:
        match fault:
            case CutLinks():
                await relay.cut()
            case SwallowLinks():
                relay.swallow()
            case SlowLinks(times=times):
                relay.slow(resident.link.round_trip_s / 2 * (times - 1))
            case LimitLinks(bytes=size):
                relay.limit(size)
    yield
    for _, relay in links:
        await relay.mend()
