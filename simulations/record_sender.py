"""Nodes that only report: `python -m simulations.record_sender PORT COUNT AHEAD`.

It makes its records beforehand, says "ready", waits for a payload at `GO` and publishes them at
QoS 1. Like an outbox it lets a record go on the hub's receipt: at most AHEAD are under way, since
mosquitto drops what waits beyond 1,000. So whoever measures a hub does not measure its senders.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

from fleet.errors import InvalidInputError
from fleet.ids import BootId, NodeId
from fleet.process import run_until_signal
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import Receipt
from fleet.transport.base import Inbound
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from simulations.sample_records import node_of, record_at

GO = "bench/go"
_AT_ONCE = 32  # that wait for the broker's own acknowledgement
_NO_RECEIPT_S = 60.0


async def send(broker: BrokerSettings, count: int, ahead: int) -> None:
    """Publishes `count` records and returns when all have their receipts."""
    payloads = [(topics.record(node_of(index)), encode(record_at(index))) for index in range(count)]
    async with (
        connect(broker, client_id="nodes") as transport,
        transport.subscribe(topics.inbox(NodeId("+"), BootId("+")), qos=0, limit=count) as inbox,
        transport.subscribe(GO, qos=1, limit=1) as go,
    ):
        sys.stdout.write("ready\n")
        (await anext(go)).ack()
        free = asyncio.Semaphore(ahead)
        listening = asyncio.create_task(_count_receipts(inbox, count, free), name="receipts")
        for first in range(0, count, _AT_ONCE):
            part = payloads[first : first + _AT_ONCE]
            for _ in part:
                async with asyncio.timeout(_NO_RECEIPT_S):
                    await free.acquire()
            await asyncio.gather(
                *(transport.publish(topic, payload, qos=1) for topic, payload in part)
            )
        await listening


async def _count_receipts(
    inbox: AsyncIterator[Inbound], count: int, free: asyncio.Semaphore
) -> None:
    left = count
    while left:
        async with asyncio.timeout(_NO_RECEIPT_S):
            receipt = decode((await anext(inbox)).payload)
        assert isinstance(receipt, Receipt)
        for _ in receipt.sequences:
            free.release()
            left -= 1


def main() -> None:
    """Reads the command line and sends."""
    if len(sys.argv) != 4:
        raise InvalidInputError("three arguments: port, count, most records under way")
    port, count, ahead = map(int, sys.argv[1:])
    run_until_signal(send(BrokerSettings(host="127.0.0.1", port=port), count, ahead))


if __name__ == "__main__":
    main()
