"""A hub that records and does nothing else: `python -m simulations.kills.hub PORT URL`."""

import asyncio
import sys
import time

from cloud_hub.notices import Notices
from cloud_hub.recording import record
from cloud_hub.settings import StoreSettings
from cloud_hub.store.database import Database
from cloud_hub.store.revision import migrate
from fleet.errors import InvalidInputError, StoreError
from fleet.logs import configure_logs
from fleet.process import run_until_signal
from fleet.protocol import topics
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect

_AGAIN_S = 0.3
_CAP_S = 2.0  # between tries to connect, to be there for the next kill


async def serve(port: int, url: str) -> None:
    """Records until cancelled, however often broker and database come and go."""
    broker, store = (
        BrokerSettings(host="127.0.0.1", port=port, reconnect_cap_s=_CAP_S),
        StoreSettings(),
    )
    with Database(url) as database:
        await _prepare(database)
        async with (
            connect(broker, client_id="hub", wait=False) as transport,
            transport.subscribe(topics.RECORDS, qos=1, limit=store.queue) as arrivals,
        ):
            sys.stdout.write("ready\n")
            notices, wait_s = Notices(time.monotonic), store.batch_wait_s
            await record(transport, arrivals, database, notices, limit=store.batch, wait_s=wait_s)


async def _prepare(database: Database) -> None:
    """Brings the schema to this release, as soon as the database answers."""
    while True:
        try:
            await asyncio.to_thread(migrate, database)
        except StoreError:
            await asyncio.sleep(_AGAIN_S)
        else:
            return


def main() -> None:
    """Reads the command line and records."""
    if len(sys.argv) != 3:
        raise InvalidInputError("two arguments: the broker's port, the database's URL")
    configure_logs(log_format="json", level="warning")
    run_until_signal(serve(int(sys.argv[1]), sys.argv[2]))


if __name__ == "__main__":
    main()
