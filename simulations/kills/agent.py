"""A device that reports and draws nothing.

`python -m simulations.kills.agent FOLDER NODE PORT RATE` makes RATE records a second, each life as
a boot of its own. A record goes into the spool, then its key into the ledger: what the ledger names
was on disk, and must be in the database once. When the file `ENOUGH` is there no new record is
made, and the process ends once all have their receipts.
"""

import asyncio
import sys
from pathlib import Path

from edge_agent.delivery import Delivery
from edge_agent.outbox import Limits, Outbox
from fleet.errors import InvalidInputError, RequestTimeout
from fleet.ids import BootId, NodeId, new_id
from fleet.logs import configure_logs
from fleet.process import run_until_signal
from fleet.protocol import topics
from fleet.transport.broker import BrokerSettings
from fleet.transport.calls import Calls
from fleet.transport.mqtt import connect
from simulations.sample_records import record_at

ENOUGH = "enough"
DRAIN_S = 300.0
_LIMITS = Limits(max_bytes=1 << 30, max_records=1_000_000)
_RESEND_S = 1.0
_CAP_S = 2.0  # between tries to connect: shorter than a device's, to be there for the next kill


def ledger_of(folder: Path, node: str) -> Path:
    """A line for each record: boot and sequence."""
    return folder / f"{node}.ledger"


async def report(folder: Path, node: NodeId, port: int, rate: float) -> None:
    """Makes `rate` records a second until it is enough, and delivers all.

    Raises:
        RequestTimeout: Some have no receipt `DRAIN_S` after the last was made.
    """
    boot, broker = (
        BootId(new_id()),
        BrokerSettings(host="127.0.0.1", port=port, reconnect_cap_s=_CAP_S),
    )
    with Outbox(folder / f"{node}.sqlite", _LIMITS) as outbox:
        async with (
            connect(broker, client_id=node, wait=False) as transport,
            Calls(transport, topics.inbox(node, boot)) as calls,
        ):
            delivery = Delivery(outbox, transport, node, _RESEND_S)
            sending = asyncio.create_task(delivery.run(calls, boot), name="outbox")
            try:
                sys.stdout.write("ready\n")
                await _make(folder, node, boot, delivery, 1 / rate)
                if not await delivery.flush(DRAIN_S):
                    raise RequestTimeout(f"{node}: not all records were confirmed")
            finally:
                sending.cancel()
                await asyncio.wait([sending])


async def _make(
    folder: Path, node: NodeId, boot: BootId, delivery: Delivery, interval_s: float
) -> None:
    sequence, loop = 0, asyncio.get_running_loop()
    with ledger_of(folder, node).open("a", encoding="ascii", buffering=1) as ledger:
        while not (folder / ENOUGH).exists():
            began = loop.time()
            sequence += 1
            made = record_at(sequence).model_copy(update={"boot_id": boot})
            if not await delivery.put(made):
                ledger.write(f"{boot} {sequence}\n")
            await asyncio.sleep(max(0.0, began + interval_s - loop.time()))


def main() -> None:
    """Reads the command line and reports."""
    if len(sys.argv) != 5:
        raise InvalidInputError("four arguments: folder, node, the broker's port, records a second")
    configure_logs(log_format="json", level="warning")
    folder, node, port, rate = sys.argv[1:]
    run_until_signal(report(Path(folder), NodeId(node), int(port), float(rate)))


if __name__ == "__main__":
    main()
