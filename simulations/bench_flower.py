"""One round of the same nodes over MQTT and on Flower's SuperLink: seconds on the wall clock.

Over MQTT each node is the agent's trainer with a training process of its own; both hold the clock
of the loop over rounds, from the first question to the commit. The nodes are those of
`simulations.learners`.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloud_hub.rounds.conduct import conduct
from edge_agent.training.trainer import READY, Trainer
from edge_agent.training.worker import Worker
from fleet.federation.client_app import HEAD_FILE
from fleet.federation.ledger import Commit, FolderLedger
from fleet.federation.plan import Plan
from fleet.ids import BootId, ModelVersion, NodeId, new_id
from fleet.protocol import topics
from fleet.protocol.codec import encode
from fleet.protocol.messages import NodeStatus
from fleet.transport.base import Transport
from fleet.transport.broker import BrokerSettings
from fleet.transport.embedded import embedded_broker
from fleet.transport.mqtt import connect
from simulations.flower_engine import superlink
from simulations.learners import RANK, learner
from simulations.processes import free_port


@dataclass(frozen=True, slots=True)
class RoundTime:
    """A way of running rounds; the first round starts the nodes' processes where they live on."""

    subject: str
    nodes: int
    used: int  # of the last round
    first_s: float
    steady_s: float  # of the last round
    ratio: float  # steady, over the SuperLink's; NaN without one


def bench(*, nodes: int, rounds: int, wait_s: float, alone: bool) -> list[RoundTime]:
    """Runs the rounds over MQTT, then, unless `alone`, on a SuperLink."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folders = [folder / f"node-{index}" for index in range(nodes)]
        for index, each in enumerate(folders):
            learner(each, index)
        plan = Plan(
            rounds=rounds,
            rank=RANK,
            steps=2,
            least_samples=50,
            least_nodes=nodes,
            query_s=wait_s,
            deadline_s=wait_s,
        )
        config = {**plan.to_config(), "head": str(folders[0] / HEAD_FILE)}
        ours = asyncio.run(_over_mqtt(folder, folders, config))
        if alone:
            return [_time("MQTT, agents' trainers", ours, math.nan)]
        theirs = _on_superlink(folder, folders, config, wait_s)
    return [
        _time("MQTT, agents' trainers", ours, theirs[-1].duration_s),
        _time("SuperLink, SuperNodes", theirs, theirs[-1].duration_s),
    ]


def _time(subject: str, commits: list[Commit], theirs_s: float) -> RoundTime:
    first, last = commits[0], commits[-1]
    used = [each for each in last.participants if each.part == "used"]
    return RoundTime(
        subject,
        len(last.participants),
        len(used),
        first.duration_s,
        last.duration_s,
        last.duration_s / theirs_s,
    )


async def _over_mqtt(folder: Path, folders: list[Path], config: dict[str, Any]) -> list[Commit]:
    ledger = FolderLedger(folder / "mqtt")
    async with (
        embedded_broker(free_port()) as broker,
        connect(broker, client_id="hub", will=None) as hub,
        asyncio.TaskGroup() as group,
    ):
        agents = group.create_task(_agents(broker, folders), name="agents")
        await conduct(hub, "bench", config, ledger)
        agents.cancel()
    return ledger.history()


async def _agents(broker: BrokerSettings, folders: list[Path]) -> None:
    """All nodes, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for folder in folders:
            group.create_task(_agent(broker, folder), name=folder.name)


async def _agent(broker: BrokerSettings, folder: Path) -> None:
    node = NodeId(folder.name)
    async with connect(broker, client_id=node, will=None) as transport, _worker(folder) as worker:
        await _say_ready(transport, node)
        await Trainer(node, folder, worker, transport).run()


@asynccontextmanager
async def _worker(folder: Path) -> AsyncIterator[Worker]:
    made = Worker([folder], lambda: False)
    try:
        yield made
    finally:
        await made.close()


async def _say_ready(transport: Transport, node: NodeId) -> None:
    status = NodeStatus(
        boot_id=BootId(new_id()),
        state="ready",
        agent_version="bench",
        device_version=ModelVersion("stand-in"),
        family="stand-in",
        facts={"training": READY},
        at=time.time(),
    )
    await transport.publish(topics.node_state(node), encode(status), qos=1, retain=True)


def _on_superlink(
    folder: Path, folders: list[Path], config: dict[str, Any], wait_s: float
) -> list[Commit]:
    ledger = folder / "superlink"
    with superlink(folder / "flower", folders, wait_s * 3) as run:
        run({**config, "ledger": str(ledger)})
    return FolderLedger(ledger).history()
