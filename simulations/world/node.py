"""One device of a world, through all its lives: the real agent behind a simulated link."""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_agent.answer import Made
from edge_agent.app import Agent, Versions, agent, presence_of
from edge_agent.device import Device
from edge_agent.maker import Wish
from edge_agent.settings import AgentSettings
from edge_agent.station import open_station
from fleet.errors import FleetError
from fleet.transport.link import LinkProfile, Outage, SimulatedLink
from simulations.history.events import History
from simulations.in_process import Silent
from simulations.scenarios.population import Asked, Resident
from simulations.world.lives import ended, until_ready
from simulations.world.network import Network
from simulations.world.spool import SPOOL, clear, fill

_NOT_SPOOLED = "the outbox "  # begins the sentence with which an agent says so

TOLD = (
    "device_version",
    "tokens",
    "prefix",
    "local",
    "verified",
    "corrected",
    "unverified",
    "wasted",
    "round_trips",
    "retries",
    "forwards",
    "bytes_up",
    "bytes_down",
    "fallback",
)


@dataclass(slots=True)
class _Life:
    """One start of the agent."""

    task: "asyncio.Task[None]"
    pictures: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    agent: Agent | None = None
    link: SimulatedLink | None = None


@dataclass(slots=True)
class Node:
    """A device that is started, killed, started again and stopped."""

    resident: Resident
    device: Device
    settings: Mapping[str, Any]  # of the agent, without its folder
    folder: Path
    network: Network
    history: History
    seed: int
    first_wish: int = 0  # where an earlier process of this device was killed
    heard_from_s: float = 0.0  # wishes of before were asked of nobody
    versions: Versions | None = None  # that may be rolled out
    _lives: int = 0
    _life: _Life | None = None
    _under_way: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether its agent runs."""
        return self._life is not None

    @property
    def link(self) -> SimulatedLink | None:
        """Its link, while the agent lives."""
        return self._life.link if self._life else None

    async def start(self) -> None:
        """Returns when the agent is there; does nothing while it lives."""
        if self._life is not None:
            return
        ready, name = asyncio.Event(), f"{self.resident.node} life {self._lives}"
        self._life = _Life(asyncio.create_task(self._live(ready), name=name))
        await until_ready(self._life.task, ready)
        self._say("started")

    async def kill(self) -> None:
        """As SIGKILL: no goodbye, and the next life finds the disk as it is at this moment."""
        life, self._life = self._life, None
        if life is None:
            return
        self._say("killed")
        shutil.copytree(self._state(), self._state(1))
        self.network.cut(self.resident.node)
        await ended(life.task)
        self._lives += 1

    async def stop(self) -> None:
        """As SIGTERM."""
        life, self._life = self._life, None
        if life is not None:
            await ended(life.task)
            self._say("stopped")

    def fill_spool(self) -> None:
        """The disk under its spool is full, in this life and the next, until `clear_spool`."""
        fill(self._state() / SPOOL)

    def clear_spool(self) -> None:
        """There is room again."""
        clear(self._state() / SPOOL)

    async def unsettled(self) -> int:
        """Pictures under way and records that wait for a receipt."""
        if self._life is None or self._life.agent is None:
            return self._under_way
        return self._under_way + (await self._life.agent.delivery.spool()).records

    async def serve_wishes(self) -> None:
        """Asks for every picture at its time; returns when the last one was asked for."""
        for number, wish in list(enumerate(self.resident.wishes))[self.first_wish :]:
            await asyncio.sleep(wish.at_s - self.history.now())
            self._say_wish("asked", number, caption=wish.caption, seed=wish.seed)
            is_late = wish.at_s < self.heard_from_s
            if is_late or self._life is None or self._life.agent is None:
                self._say_wish("unheard", number)
                continue
            work = self._make(self._life.agent, number, wish)
            self._life.pictures.create_task(work, name=f"{self.resident.node} wish {number}")

    async def _make(self, running: Agent, number: int, wish: Asked) -> None:
        begun = self.history.now()
        self._under_way += 1
        try:
            made = await running.make(Wish(wish.caption, seed=wish.seed), Silent())
        except FleetError as error:
            self._say_wish("refused", number, error=type(error).__name__)
        except asyncio.CancelledError:
            self._say_wish("interrupted", number)
            raise
        else:
            took_s = self.history.now() - begun
            self._say_wish("made", number, took_s=round(took_s, 6), **_told(made))
        finally:
            self._under_way -= 1

    async def _live(self, ready: asyncio.Event) -> None:
        life, node = self._life, self.resident.node
        assert life is not None
        state = self._state()
        settings = AgentSettings.model_validate({"state_dir": state, **self.settings})
        link = Random(f"{self.seed} {node} {self._lives}")
        with open_station(state, node, patience_s=0) as station:
            will = presence_of(station, self.device.manifest).will()
            async with (
                self.network.connect(node, will) as transport,
                SimulatedLink(transport, self._profile(), link) as life.link,
                agent(
                    settings,
                    station,
                    self.device,
                    life.link,
                    lambda _: None,
                    versions=self.versions,
                ) as life.agent,
                life.pictures,
            ):
                ready.set()
                await asyncio.Event().wait()

    def _profile(self) -> LinkProfile:
        """The network with the outages that are still to come."""
        now = self.history.now()
        to_come = [
            Outage(outage.begin_s - now, outage.length_s)
            for outage in self.resident.link.outages
            if outage.begin_s >= now
        ]
        return replace(self.resident.link, outages=tuple(to_come))

    def _state(self, later: int = 0) -> Path:
        return self.folder / self.resident.node / f"life-{self._lives + later}"

    def _say(self, state: str) -> None:
        self.history.say("node", node=self.resident.node, state=state, life=self._lives)

    def _say_wish(self, event: str, number: int, **facts: Any) -> None:
        self.history.say(event, node=self.resident.node, wish=number, **facts)


def image_name(image: NDArray[np.uint8]) -> str:
    """What the history calls a picture by its pixels."""
    return blake2b(image.tobytes(), digest_size=8).hexdigest()


def _told(made: Made) -> dict[str, Any]:
    """What the history says of a picture."""
    return {
        "generation": made.generation_id,
        "image": image_name(made.image),
        "spooled": not any(note.startswith(_NOT_SPOOLED) for note in made.notes),
        **{name: getattr(made, name) for name in TOLD},
    }
