"""Whoever runs rounds from the database, as a process: `database_hub.py PORT FOLDER`.

The run `toy` is in `hub.db` of the folder; a process that was killed loses its lock in a second.
"""

import asyncio
import sys
from pathlib import Path

from cloud_hub.rounds import running
from cloud_hub.rounds.telling import Told
from cloud_hub.store.database import Database
from fleet.errors import CapacityError
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from tests.integration.rounds.node import QUICK

LEASE_S = 1.0


def show(told: Told) -> None:
    sys.stdout.write(f"{told.number} {told.phase} {len(told.awaited)}\n")
    sys.stdout.flush()


async def main(port: int, folder: Path) -> None:
    broker = BrokerSettings(host="127.0.0.1", port=port, **QUICK)
    running.LEASE_S, running.BEAT_S = LEASE_S, LEASE_S / 5
    with Database(f"sqlite:///{folder / 'hub.db'}") as database:
        async with connect(broker, client_id="hub-rounds", wait=True) as transport:
            while True:
                try:
                    await running.take_up(transport, database, "toy", show)
                except CapacityError:  # the lock of a life before
                    await asyncio.sleep(LEASE_S / 5)
                else:
                    return


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
