"""Many real agents in one process: a part of a scenario's fleet over real MQTT.

`python -m simulations.real.crowd ORDER` reads an order (JSON), starts its agents, says "ready",
waits until the order's `go` file names the beginning, and lets them live. All of them decode with
one onnxruntime session, each behind a simulated network of its own; those whose links a fault falls
on reach the broker through a relay.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

from edge_agent.app import load_device
from edge_agent.settings import AgentSettings
from fleet.errors import InvalidInputError
from fleet.logs import configure_logs
from fleet.process import run_until_signal
from fleet.transport.broker import BrokerSettings
from simulations.history.events import History
from simulations.real.links import disturbed, on_links
from simulations.real.relay import Relay
from simulations.scenarios.faults import (
    CutLinks,
    DoubleClients,
    Fault,
    FillSpools,
    JumpClock,
    LimitLinks,
    SlowLinks,
    SwallowLinks,
)
from simulations.scenarios.population import population, struck
from simulations.scenarios.scenario import Scenario
from simulations.world.faults import bring, full_spools
from simulations.world.fleet import live
from simulations.world.network import MqttNetwork
from simulations.world.node import Node

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class CrowdOrder:
    """Which part of a fleet lives where; every path as text.

    Attributes:
        scenario: As JSON.
        places: Of these devices, in the fleet.
        first_wishes: The first wish that is still to be asked, by node; others begin with 0.
        events: File that receives the events of this process.
        go: File that will hold the beginning, on the clock of `time.monotonic`; where it is there
            already, an earlier process of these devices was killed.
    """

    scenario: str
    seed: int
    places: list[int]
    first_wishes: dict[str, int]
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
    go = Path(order.go)
    begins_at = [_read(go)] if go.exists() else []  # noqa: ASYNC240  # a few bytes
    is_again = bool(begins_at)
    scenario = Scenario.model_validate_json(order.scenario)
    history = History(stream, lambda: time.monotonic() - begins_at[0] if begins_at else 0.0)
    async with AsyncExitStack() as stack:
        relays = {
            place: await stack.enter_async_context(Relay(order.port))
            for place in sorted(on_links(scenario, order.seed) & set(order.places))
        }
        nodes = _nodes(order, scenario, history, relays)
        for node in nodes.values():
            await node.start()
        sys.stdout.write("ready\n")
        if not is_again:
            while not go.exists():  # noqa: ASYNC110, ASYNC240  # another process makes it
                await asyncio.sleep(_POLL_S)
            begins_at.append(_read(go))
            await asyncio.sleep(begins_at[0] - time.monotonic())
        for node in nodes.values() if is_again else ():
            node.heard_from_s = history.now()
            node.clear_spool()  # who filled it was killed too
        network = MqttNetwork(_broker(order.port))
        faults = _Faults(scenario, order.seed, nodes, relays, network, history)
        await live(list(nodes.values()), faults.to_come(), history)
        for node in nodes.values():
            await node.stop()


def _read(go: Path) -> float:
    return float(go.read_text(encoding="utf-8"))


def _broker(port: int) -> BrokerSettings:
    return BrokerSettings(host="127.0.0.1", port=port)


def _nodes(
    order: CrowdOrder, scenario: Scenario, history: History, relays: Mapping[int, Relay]
) -> dict[int, Node]:
    """The nodes of this part, by their place in the fleet; some behind a relay."""
    settings = {
        "generation": scenario.generation,
        "node": {"send_captions": True},
        "training": {"take_part": False},
        "device": {"threads": 1},
        "broker": _broker(order.port).model_dump(include={"host", "port"}),
        "bundle": order.bundle,
        "public_key": order.public_key,
    }
    folder = Path(order.folder)
    device = load_device(AgentSettings.model_validate({"state_dir": folder, **settings}))
    fleet = population(scenario, order.seed)

    def node(place: int) -> Node:
        port = relays[place].port if place in relays else order.port
        network, resident = MqttNetwork(_broker(port)), fleet[place]
        made = Node(resident, device, settings, folder, network, history, order.seed)
        made.first_wish = order.first_wishes.get(resident.node, 0)
        return made

    return {place: node(place) for place in order.places}


@dataclass(frozen=True, slots=True)
class _Faults:
    """The faults that are brought from within, on the nodes that live here."""

    scenario: Scenario
    seed: int
    nodes: Mapping[int, Node]
    relays: Mapping[int, Relay]
    network: MqttNetwork
    history: History

    def to_come(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Those that have not begun yet."""
        for index, fault in enumerate(self.scenario.faults):
            places = sorted(struck(self.scenario, self.seed, index) & set(self.nodes))
            here = [self.nodes[place] for place in places]
            in_force = self._in_force(fault, places)
            if in_force is not None and fault.at_s >= self.history.now():
                yield bring(fault, here, in_force, self.history)

    def _in_force(
        self, fault: Fault, places: Sequence[int]
    ) -> AbstractAsyncContextManager[None] | None:
        here = [self.nodes[place] for place in places]
        match fault:
            case JumpClock(by_s=by_s):
                return _jumped(by_s)
            case CutLinks() | SwallowLinks() | SlowLinks() | LimitLinks() if here:
                links = zip(here, places, strict=True)
                return disturbed(fault, [(node.resident, self.relays[at]) for node, at in links])
            case FillSpools() if here:
                return full_spools(here)
            case DoubleClients() if here:
                return _doubled(here, self.network)
            case _:
                return None


@asynccontextmanager
async def _jumped(by_s: float) -> AsyncIterator[None]:
    """The wall clock of all devices here; that of the hub stays right."""
    right = time.time
    with patch.object(time, "time", lambda: right() + by_s):
        yield


@asynccontextmanager
async def _doubled(nodes: list[Node], network: MqttNetwork) -> AsyncIterator[None]:
    """Other clients of the same ids: each side takes the link from the other, again and again."""
    async with AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(network.connect(node.resident.node))
        yield


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
