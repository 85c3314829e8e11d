"""A node as a process: says that it can train, and takes part in rounds until it is killed.

`node.py PORT NODE FOLDER`; prints the id of each message when it has trained for it.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from edge_agent.training.trainer import READY, Trainer
from edge_agent.training.worker import Worker
from fleet.ids import BootId, ModelVersion, NodeId, new_id
from fleet.protocol import topics
from fleet.protocol.codec import encode
from fleet.protocol.messages import NodeStatus
from fleet.transport.base import Transport
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect

QUICK: dict[str, Any] = {"reconnect_s": 0.05, "reconnect_cap_s": 0.5}


class Telling(Worker):
    """A worker that tells what it was asked."""

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = await super().ask(request)
        sys.stdout.write(f"{request['kind']} {request['message_id']}\n")
        sys.stdout.flush()
        return answer


async def show(transport: Transport, node: NodeId) -> None:
    """Says that the node is there, at each link and now and then."""
    boot = BootId(new_id())
    while True:
        await transport.wait_connected()
        status = NodeStatus(
            boot_id=boot,
            state="ready",
            agent_version="1",
            device_version=ModelVersion("d"),
            family="toy",
            facts={"training": READY},
            at=time.time(),
        )
        await transport.publish(topics.node_state(node), encode(status), qos=1, retain=True)
        try:
            async with asyncio.timeout(2):
                await transport.wait_connected(False)
        except TimeoutError:
            continue


async def main(port: int, node: NodeId, folder: Path) -> None:
    broker = BrokerSettings(host="127.0.0.1", port=port, **QUICK)
    async with connect(broker, client_id=node, wait=False) as transport:
        trainer = Trainer(node, folder, Telling([folder], lambda: False), transport)
        async with asyncio.TaskGroup() as group:
            group.create_task(trainer.run())
            group.create_task(show(transport, node))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), NodeId(sys.argv[2]), Path(sys.argv[3])))
