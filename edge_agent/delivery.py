"""From the outbox to the hub: publish, publish again until the receipt, then drop.

Records go at QoS 1, at most `BATCH` unconfirmed at a time, each again after a wait that
doubles from `resend_s` to `LONGEST_WAIT_S`. Brokers lose acknowledged messages when they are
killed, so only the hub's receipt counts.
"""

import asyncio
import random
from dataclasses import dataclass

from edge_agent.outbox import Outbox, Spool, Spooled
from fleet.errors import OutputError, ProtocolError, TransportError
from fleet.ids import BootId, NodeId
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode
from fleet.protocol.messages import GenerationRecord, Receipt
from fleet.transport.base import Transport
from fleet.transport.calls import Calls

BATCH = 32
LONGEST_WAIT_S = 60.0
RECEIPT_LIMIT = 64

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Try:
    """When a record is sent again, and how long the wait after that is."""

    at: float
    wait_s: float


class Delivery:
    """The one user of the outbox; all access goes through its lock, off the loop."""

    def __init__(self, outbox: Outbox, transport: Transport, node: NodeId, resend_s: float) -> None:
        self._outbox = outbox
        self._transport = transport
        self._node = node
        self._resend_s = resend_s
        self._spool = Spool(0, 0, 0)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._emptied = asyncio.Event()
        self._tries: dict[tuple[str, int], _Try] = {}

    async def put(self, record: GenerationRecord) -> str:
        """Spools a record and returns "", or a sentence that says why it is not on disk."""
        try:
            async with self._lock:
                await asyncio.to_thread(self._outbox.put, record)
        except OutputError as error:
            log.warning("record not spooled", generation_id=record.generation_id, reason=str(error))
            return str(error)
        finally:
            self._emptied.clear()
            self._wake.set()
        return ""

    async def spool(self) -> Spool:
        """How the spool stands, or stood when it could last be read."""
        try:
            async with self._lock:
                self._spool = await asyncio.to_thread(self._outbox.state)
        except OutputError as error:
            log.warning("spool not read", reason=str(error))
        return self._spool

    async def flush(self, deadline_s: float) -> bool:
        """Waits until all records are confirmed, at most `deadline_s`; whether they are."""
        try:
            async with asyncio.timeout(deadline_s):
                while (await self.spool()).records:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    async def run(self, calls: Calls, boot: BootId) -> None:
        """Sends and takes receipts until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send(), name="outbox: send")
            tasks.create_task(self._take(calls), name="outbox: receipts")
            tasks.create_task(self._take_older(boot), name="outbox: receipts of earlier boots")

    # ── Sending ───────────────────────────────────────────────────────────────────────────

    async def _send(self) -> None:
        while True:
            if not self._transport.is_connected:
                await self._transport.wait_connected()
                self._tries.clear()  # whatever was on its way may be gone
            self._wake.clear()
            wait_s = await self._send_due()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _send_due(self) -> float:
        """Publishes what is due; returns the seconds until something is again."""
        now = asyncio.get_running_loop().time()
        waiting = frozenset(key for key, attempt in self._tries.items() if attempt.at > now)
        try:
            async with self._lock:
                await asyncio.to_thread(self._outbox.flush)
                batch = await asyncio.to_thread(self._outbox.pending, BATCH, waiting)
            for spooled in batch:
                await self._publish(spooled)
        except (TransportError, OutputError) as error:
            log.info("outbox waits", reason=str(error))
            return self._resend_s
        times = [attempt.at for attempt in self._tries.values()]
        return max(0.05, min(times, default=now + LONGEST_WAIT_S) - now)

    async def _publish(self, spooled: Spooled) -> None:
        await self._transport.publish(topics.record(self._node), spooled.payload, qos=1)
        key = (spooled.boot_id, spooled.sequence)
        last = self._tries.get(key)
        wait_s = min(LONGEST_WAIT_S, last.wait_s * 2) if last else self._resend_s
        at = asyncio.get_running_loop().time() + wait_s * random.uniform(0.75, 1.25)
        self._tries[key] = _Try(at, wait_s)

    # ── Receipts ──────────────────────────────────────────────────────────────────────────

    async def _take(self, calls: Calls) -> None:
        async for message in calls.others():
            await self._take_message(message)

    async def _take_older(self, boot: BootId) -> None:
        """Receipts come to the inbox of the boot that made the record."""
        try:
            async with self._lock:
                boots = await asyncio.to_thread(self._outbox.boots)
        except OutputError as error:
            log.warning("spool not read", reason=str(error))
            return
        inboxes = [topics.inbox(self._node, each) for each in boots if each != boot]
        if not inboxes:
            return
        async with self._transport.subscribe(*inboxes, qos=0, limit=RECEIPT_LIMIT) as arrivals:
            async for inbound in arrivals:
                try:
                    message = decode(inbound.payload)
                except ProtocolError as error:
                    log.warning("receipt dropped", reason=str(error))
                else:
                    await self._take_message(message)
                inbound.ack()

    async def _take_message(self, message: object) -> None:
        if isinstance(message, Receipt):
            await self._confirm(message)

    async def _confirm(self, receipt: Receipt) -> None:
        try:
            async with self._lock:
                await asyncio.to_thread(self._outbox.drop, receipt.boot_id, receipt.sequences)
        except OutputError as error:
            log.warning("receipt not applied", reason=str(error))
            return
        for sequence in receipt.sequences:
            self._tries.pop((receipt.boot_id, sequence), None)
        self._emptied.set()
        self._wake.set()
