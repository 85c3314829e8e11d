"""Pictures of a real run, drawn again by one undisturbed agent beside a hub in this process."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_agent.maker import Wish
from fleet.models.bundle import reference_path
from fleet.transport.link import WIFI
from fleet.transport.memory import MemoryBroker
from simulations.history.events import Event
from simulations.history.run import Twin
from simulations.in_process import Place, Silent, agent_beside, hub_beside
from simulations.real.run import RealOrder
from simulations.world.node import image_name

MOST = 8  # a picture takes a second or so


def twin_of(order: RealOrder, events: Sequence[Event]) -> Twin:
    """What an undisturbed fleet of one makes of up to `MOST` of a run's pictures, evenly spread.

    Only pictures that the cloud took part in to the end have a twin.
    """
    wishes = list(_comparable(events))
    names = asyncio.run(_draw(order, wishes[:: -(-len(wishes) // MOST)])) if wishes else {}
    return lambda caption, seed, _: names.get((caption, seed))


def _comparable(events: Sequence[Event]) -> Iterator[tuple[str, int]]:
    asked = {(e["node"], e["wish"]): e for e in events if e["event"] == "asked"}
    for event in events:
        if event["event"] != "made" or event["unverified"] or event["fallback"]:
            continue
        # A picture that nobody asked for breaks a law of its own.
        if wish := asked.get((event["node"], event["wish"])):
            yield wish["caption"], wish["seed"]


async def _draw(order: RealOrder, wishes: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
    models, broker = order.models or reference_path(), MemoryBroker()
    patient = {"deadline_s", "outage_patience_s"}
    generation = order.scenario.generation.model_dump(exclude=patient)
    with TemporaryDirectory() as folder:
        place = Place(models, Path(folder) / "twin", broker, WIFI)
        async with (
            hub_beside(models, Path(folder), broker),
            agent_beside(place, generation) as running,
        ):
            return {
                (caption, seed): image_name(
                    (await running.make(Wish(caption, seed=seed), Silent())).image
                )
                for caption, seed in wishes
            }
