"""Corrects what the device had to finish alone, once the cloud is there and nobody waits.

A repair is the same picture again (caption, seed, policy): the tokens before the first
unverified one are final and are replayed, the rest is drafted anew and judged. By decision 0004
it ends as the picture that an undisturbed cloud would have given.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edge_agent.answer import Made
from edge_agent.generate import Outcome
from edge_agent.shelf import Shelf, Shelved, Unfinished
from fleet.errors import FleetError, InvalidInputError, OutputError
from fleet.ids import ModelVersion
from fleet.logs import get_logger

LOOK_S = 1.0  # between two looks at link, hub and queue
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0  # after a repair that failed

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a repair needs of the rest of the agent."""

    device_version: Callable[[], ModelVersion]  # of now
    can_begin: Callable[[], bool]  # the hub is there, and nobody waits for a picture
    remake: Callable[[Unfinished], Awaitable[Made]]  # fails where the cloud cannot help
    announce: Callable[[str], None]


async def repair_all(shelf: Shelf, bench: Bench) -> None:
    """Corrects what waits on the shelf, oldest first, until cancelled."""
    pause_s = FIRST_PAUSE_S
    while True:
        await asyncio.sleep(LOOK_S)
        waiting = shelf.next_waiting() if bench.can_begin() else None
        if waiting is None:
            continue
        try:
            await _repair(waiting, shelf, bench)
            pause_s = FIRST_PAUSE_S
        except FleetError as error:
            log.info("repair waits", generation_id=waiting.generation_id, reason=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _repair(waiting: Shelved, shelf: Shelf, bench: Bench) -> None:
    unfinished = waiting.unfinished
    if unfinished.device_version != bench.device_version():
        shelf.give_up(waiting, "the device model is another one now: ask for the picture again")
        return
    try:
        made = await bench.remake(unfinished)
    except (InvalidInputError, OutputError) as error:
        shelf.give_up(waiting, str(error))
        return
    shelf.correct(waiting, made)
    bench.announce(f"picture {waiting.generation_id} is corrected: {made.caption}")


def unfinished_of(outcome: Outcome, device_version: ModelVersion) -> Unfinished:
    """What a repair of this outcome needs."""
    known = outcome.picture.known(outcome.order.prefix_tokens)
    return Unfinished(
        generation_id=outcome.generation,
        device_version=device_version,
        order=outcome.order,
        tokens=known.tokens.tolist(),
        marks=known.marks.tolist(),
    )
