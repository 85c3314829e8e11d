"""Requests of real pictures, heard on the broker while a device makes them with a hub."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent.client import EdgeClient
from fleet.errors import FleetError
from fleet.protocol.codec import decode
from fleet.protocol.messages import (
    GenerationOpen,
    GenerationOpened,
    VerifyRequest,
    VerifyResponse,
)
from fleet.transport.base import Inbound
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from simulations.processes import free_port
from simulations.site import Site, broker, device, hub

CAPTIONS = ("google: red heart", "google: blue heart")
_HEARD = 4096


@dataclass(frozen=True, slots=True)
class Script:
    """One picture's requests that were answered with a verdict, in their order.

    Attributes:
        gaps_s: For each backlog, from the answer before it to the request: the device's own time.
    """

    opening: GenerationOpen
    backlogs: tuple[VerifyRequest, ...]
    gaps_s: tuple[float, ...]

    @property
    def whole(self) -> "Script":
        """The same picture drawn by the cloud alone."""
        drawn = {"prefix_tokens": self.tokens, "request_id": self.opening.request_id}
        return Script(self.opening.model_copy(update=drawn), (), ())

    @property
    def tokens(self) -> int:
        """Positions that it reaches."""
        last = self.backlogs[-1]
        return last.start + len(last.tokens) // 2


async def record(models: Path, captions: Sequence[str] = CAPTIONS) -> list[Script]:
    """Lets a device make one picture of each caption, and returns what it asked.

    Raises:
        FleetError: A picture was not finished with the hub.
    """
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), free_port(), models, own_broker=False, start_s=120)
        with broker(site), hub(site), device(site, "recorder"):
            client = EdgeClient(site.state("recorder"))
            return [await _hear(site, client, caption) for caption in captions]


async def _hear(site: Site, client: EdgeClient, caption: str) -> Script:
    settings = BrokerSettings(port=site.port)
    ear = _Ear()
    async with (
        connect(settings, client_id="ear") as transport,
        transport.subscribe(
            "fleet/v1/d/+/rq/#", "fleet/v1/d/+/rx/#", qos=0, limit=_HEARD
        ) as arrivals,
    ):
        listening = asyncio.create_task(ear.listen(arrivals), name="ear")
        made = await asyncio.to_thread(client.generate, caption, seed=1)
        await asyncio.sleep(0.2)  # the last answer may be on its way to this ear
        listening.cancel()
        await asyncio.wait([listening])
    if made.fallback or ear.opening is None:
        raise FleetError(f"the picture of {caption!r} was not finished with the hub")
    return Script(ear.opening, tuple(ear.backlogs), tuple(ear.gaps_s))


@dataclass
class _Ear:
    opening: GenerationOpen | None = None
    backlogs: list[VerifyRequest] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    async def listen(self, arrivals: AsyncIterator[Inbound]) -> None:
        asked: dict[str, tuple[VerifyRequest, float]] = {}
        answered_at = time.monotonic()
        async for inbound in arrivals:
            now = time.monotonic()
            match message := decode(inbound.payload):
                case GenerationOpen():
                    self.opening = message
                case VerifyRequest():
                    asked[message.request_id] = message, now
                case GenerationOpened():
                    answered_at = now
                case VerifyResponse() if message.request_id in asked:
                    backlog, sent_at = asked.pop(message.request_id)
                    self.backlogs.append(backlog)
                    self.gaps_s.append(max(sent_at - answered_at, 0.0))
                    answered_at = now
                case _:
                    pass
