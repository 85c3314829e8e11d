"""The machine under a virtual world: its clocks, its sleep and its luck, given to unchanged code.

Agents and hubs ask Python for the time, for random numbers and for fresh ids. Here they get the
loop's time and a seed's luck, so that the code of the field runs as it is and a run repeats.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, tzinfo
from unittest.mock import patch

from cloud_hub.rollout import controller
from simulations.world.clock import VirtualTimeLoop


@dataclass(slots=True)
class Machine:
    """The clocks of a world; the one on the wall may jump."""

    loop: asyncio.AbstractEventLoop
    epoch_s: float  # seconds since 1970 at which the world begins
    jumped_s: float = 0.0

    def wall(self) -> float:
        """Seconds since 1970, as every computer of the world believes."""
        return self.epoch_s + self.jumped_s + self.loop.time()


@contextmanager
def machine(loop: VirtualTimeLoop, seed: int, epoch_s: float) -> Iterator[Machine]:
    """Replaces clocks and luck of this process until the context ends; one world at a time."""
    world = Machine(loop, epoch_s)
    ids = random.Random(f"ids {seed}")
    luck = random.getstate()
    random.seed(f"luck {seed}")
    try:
        with (
            patch.multiple(
                time,
                time=world.wall,
                monotonic=loop.time,
                perf_counter=loop.time,
                sleep=loop.work,
            ),
            patch.object(controller, "datetime", _calendar(world)),
            patch.object(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
        ):
            yield world
    finally:
        random.setstate(luck)


def _calendar(world: Machine) -> type[datetime]:
    """The dates by which a rollout counts what was seen since it began."""

    class Calendar(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(world.wall(), tz)

    return Calendar
