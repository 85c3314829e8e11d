"""Records to rows: one transaction a batch, acknowledged and receipted after its commit.

While the database cannot be written, the batch waits and is tried again; what arrives meanwhile
stays unacknowledged, which holds the broker back, and nodes keep what was not receipted.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from random import random

import msgpack

from cloud_hub.batches import batches
from cloud_hub.notices import Notices
from cloud_hub.store.database import Database
from cloud_hub.store.records import Rejected, Reported, store_batch
from cloud_hub.store.tables.counted import COUNTS
from fleet.errors import ProtocolError, StoreError, TransportError
from fleet.ids import BootId, NodeId, is_level
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import GenerationRecord, Receipt
from fleet.transport.base import Inbound, Transport

log = get_logger(__name__)

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.2, 10.0
_BIGGEST, _MOST = 1 << 63, 1 << 31

Key = tuple[NodeId, BootId, int]


@dataclass(frozen=True, slots=True)
class Reading:
    """A batch sorted into what is stored and what is set aside, and whom to send receipts."""

    reports: Sequence[Reported]
    rejected: Sequence[Rejected]
    receipts: Sequence[Key]


async def record(  # noqa: PLR0913 - a record's whole way
    transport: Transport,
    arrivals: AsyncIterator[Inbound],
    database: Database,
    notices: Notices,
    *,
    limit: int,
    wait_s: float,
    stored: Callable[[NodeId, GenerationRecord], None] = lambda _node, _record: None,
) -> None:
    """Stores what arrives, until cancelled; `stored` gets every record after its commit."""
    async for batch in batches(arrivals, limit=limit, wait_s=wait_s):
        reading = read_batch(batch)
        refused = await _until_stored(database, reading)
        for each in [*reading.rejected, *refused]:
            notices.warn("record set aside", each.node, each.reason)
        for inbound in batch:
            inbound.ack()
        for report in reading.reports:
            stored(report.node, report.record)
        for topic, receipt in receipts(reading.receipts):
            try:
                await transport.publish(topic, encode(receipt), qos=0)
            except TransportError:  # the node sends the records again, and gets one then
                log.info("receipt not sent", topic=topic)


def read_batch(batch: Sequence[Inbound]) -> Reading:
    """Sorts a batch; pure."""
    reports: list[Reported] = []
    rejected: list[Rejected] = []
    receipted: list[Key] = []
    for inbound in batch:
        try:
            found = _read(topics.sender(inbound.topic), inbound.payload)
        except ProtocolError as error:
            found = Rejected(_node_of(inbound.topic), inbound.payload, str(error))
        if isinstance(found, Reported):
            reports.append(found)
            receipted.append((found.node, found.record.boot_id, found.record.sequence))
        else:
            rejected.append(found)
            receipted.extend(_key_in(found))
    return Reading(reports, rejected, receipted)


def receipts(keys: Sequence[Key]) -> list[tuple[str, Receipt]]:
    """One receipt for each boot of each node, with the topic it goes to."""
    by_boot: defaultdict[tuple[NodeId, BootId], list[int]] = defaultdict(list)
    for node, boot, sequence in keys:
        by_boot[node, boot].append(sequence)
    return [
        (topics.inbox(node, boot), Receipt(boot_id=boot, sequences=sequences))
        for (node, boot), sequences in by_boot.items()
    ]


async def _until_stored(database: Database, reading: Reading) -> list[Rejected]:
    """Tries until the batch is committed; the records that the database refused."""
    wait_s = _FIRST_RETRY_S
    while True:
        try:
            return await asyncio.to_thread(
                store_batch, database, reading.reports, reading.rejected, datetime.now(UTC)
            )
        except StoreError as error:
            log.error("records wait", reason=str(error), records=len(reading.reports))
        await asyncio.sleep(wait_s * (0.5 + random() / 2))
        wait_s = min(2 * wait_s, _LONGEST_RETRY_S)


def _read(node: NodeId, payload: bytes) -> Reported | Rejected:
    if not is_level(node):
        raise ProtocolError(f"node id {node[:80]!r} is not usable")
    message = decode(payload)
    if not isinstance(message, GenerationRecord):
        return Rejected(node, payload, f"{type(message).__name__} is not a record")
    problem = _problem(message)
    if problem:
        return Rejected(node, payload, problem)
    return Reported(node, message, payload)


def _problem(record: GenerationRecord) -> str:
    """What no database would take, or no reader understand."""
    texts, numbers = _texts(record), _numbers(record)
    if max(map(len, texts)) > _LONG or "\0" in "".join(texts):  # nearly none: look closer
        for name, value in zip(_TEXTS, texts, strict=True):
            if len(value) > _LONGEST.get(name, _LONG) or "\0" in value:
                return f"{name} is too long, or holds a NUL character"
    if max(numbers) >= _BIGGEST or min(numbers) < -_BIGGEST:
        which = next(n for n, v in zip(_NUMBERS, numbers, strict=True) if abs(v) >= _BIGGEST)
        return f"{which} does not fit in 64 bits"
    if max(_counts(record)) >= _MOST:
        which = next(name for name in COUNTS if getattr(record, name) >= _MOST)
        return f"{which} does not fit in 32 bits"
    if not math.isfinite(record.created_at) or math.isnan(record.threshold):
        return "created_at or threshold is not a number"
    if not is_level(record.boot_id):
        return "boot_id is not 1 to 63 lower-case letters, digits, '-' or '_'"
    return ""


def _fields(kind: type) -> tuple[str, ...]:
    """The fields of a record that hold a kind of value, ids as what they are made of."""
    found = ((name, field.annotation) for name, field in GenerationRecord.model_fields.items())
    return tuple(name for name, made in found if getattr(made, "__supertype__", made) is kind)


_TEXTS, _NUMBERS = _fields(str), _fields(int)
_texts, _numbers, _counts = attrgetter(*_TEXTS), attrgetter(*_NUMBERS), attrgetter(*COUNTS)
_LONG, _LONGEST = 64, {"caption": 512}  # characters; others have the first


def _node_of(topic: str) -> NodeId:
    levels = topic.split("/")
    return NodeId(levels[3][:63] if len(levels) > 3 else "")


def _key_in(rejected: Rejected) -> list[Key]:
    """The key of a payload that is no record, if it has one, so that its sender can drop it."""
    try:
        fields = msgpack.unpackb(rejected.payload[1:])
        boot, sequence = fields["boot_id"], fields["sequence"]
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        return []
    if not isinstance(boot, str) or not is_level(boot) or not is_level(rejected.node):
        return []
    if not isinstance(sequence, int) or not 0 <= sequence <= 1 << 40:
        return []
    return [(rejected.node, BootId(boot), sequence)]
