"""Whoever runs rounds, as a process: `hub.py PORT FOLDER`, with `plan.json` in the folder."""

import asyncio
import json
import sys
from pathlib import Path

from cloud_hub.rounds.conduct import conduct
from fleet.federation.collect import Observer, Progress
from fleet.federation.ledger import FolderLedger
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from tests.integration.rounds.node import QUICK


def show(progress: Progress) -> None:
    sys.stdout.write(f"{progress.number} {progress.phase} {len(progress.awaited)}\n")
    sys.stdout.flush()


async def main(port: int, folder: Path) -> None:
    config = json.loads((folder / "plan.json").read_text())
    broker = BrokerSettings(host="127.0.0.1", port=port, **QUICK)
    async with connect(broker, client_id="hub-rounds", wait=True) as transport:
        await conduct(transport, "toy", config, FolderLedger(folder / "ledger"), Observer(show))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
