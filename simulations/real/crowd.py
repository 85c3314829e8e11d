"""Many real agents in one process: a part of a scenario's fleet over real MQTT.

`python -m simulations.real.crowd ORDER` reads an order (JSON), starts its agents, says "ready",
waits until the order's `go` file names the beginning, and lets them live. All of them decode with
one onnxruntime session, each behind a simulated network of its own.
"""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from edge_agent.app import load_device
from edge_agent.settings import AgentSettings
from fleet.errors import InvalidInputError
from fleet.logs import configure_logs
from fleet.process import run_until_signal
from fleet.transport.broker import BrokerSettings
from simulations.history.events import History
from simulations.scenarios.faults import CutLinks, SlowLinks, SwallowLinks
from simulations.scenarios.population import population, struck
from simulations.scenarios.scenario import Scenario
from simulations.world.faults import bring, disturbed
from simulations.world.fleet import live
from simulations.world.network import MqttNetwork
from simulations.world.node import Node

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class CrowdOrder:
    """Which part of a fleet lives where; every path as text.

    Attributes:
        scenario: As JSON.
        part: Devices part, part + parts, part + 2 parts … of the fleet.
        events: File that receives the events of this part.
        go: File that will hold the beginning, on the clock of `time.monotonic`.
    """

    scenario: str
    seed: int
    part: int
    parts: int
    port: int
    folder: str
    events: str
    go: str
    bundle: str | None
    public_key: str | None


def write_order(file: Path, order: CrowdOrder) -> None:
    """Writes what a crowd reads."""
    file.write_text(json.dumps(asdict(order)), encoding="utf-8")


async def crowd(order: CrowdOrder, stream: TextIO) -> None:
    """Runs a part of the fleet to its end."""
    begins_at: list[float] = []
    scenario = Scenario.model_validate_json(order.scenario)
    history = History(stream, lambda: time.monotonic() - begins_at[0] if begins_at else 0.0)
    nodes = _nodes(order, scenario, history)
    for node in nodes.values():
        await node.start()
    sys.stdout.write("ready\n")
    go = Path(order.go)
    while not go.exists():  # noqa: ASYNC110, ASYNC240  # another process makes it
        await asyncio.sleep(_POLL_S)
    begins_at.append(float(go.read_text(encoding="utf-8")))  # noqa: ASYNC240  # a few bytes
    await asyncio.sleep(begins_at[0] - time.monotonic())
    await live(list(nodes.values()), _faults(scenario, order.seed, nodes, history), history)
    for node in nodes.values():
        await node.stop()


def _nodes(order: CrowdOrder, scenario: Scenario, history: History) -> dict[int, Node]:
    """The nodes of this part, by their place in the fleet."""
    broker = {"host": "127.0.0.1", "port": order.port}
    settings = {
        "generation": scenario.generation,
        "node": {"send_captions": True},
        "training": {"take_part": False},
        "device": {"threads": 1},
        "broker": broker,
        "bundle": order.bundle,
        "public_key": order.public_key,
    }
    folder = Path(order.folder)
    device = load_device(AgentSettings.model_validate({"state_dir": folder, **settings}))
    network = MqttNetwork(BrokerSettings.model_validate(broker))
    return {
        place: Node(resident, device, settings, folder, network, history, order.seed)
        for place, resident in enumerate(population(scenario, order.seed))
        if place % order.parts == order.part
    }


def _faults(
    scenario: Scenario, seed: int, nodes: dict[int, Node], history: History
) -> Iterator[Coroutine[Any, Any, None]]:
    """The faults of networks, on the nodes that live here."""
    for index, fault in enumerate(scenario.faults):
        match fault:
            case CutLinks() | SwallowLinks() | SlowLinks():
                places = sorted(struck(scenario, seed, index) & set(nodes))
                if here := [nodes[place] for place in places]:
                    yield bring(fault, here, disturbed(fault, here), history)
            case _:
                pass


def main() -> None:
    """Reads the order that the command line names, and runs it."""
    if len(sys.argv) != 2:
        raise InvalidInputError("one argument: the file of the order")
    order = CrowdOrder(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    configure_logs(log_format="json", level="warning")
    with Path(order.events).open("w", encoding="utf-8", buffering=1) as stream:
        run_until_signal(crowd(order, stream))


if __name__ == "__main__":
    main()
