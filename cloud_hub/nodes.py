"""What nodes say of themselves: births, heartbeats and last wills to rows, in batches."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

from cloud_hub.batches import batches
from cloud_hub.notices import Notices
from cloud_hub.store.database import BadValueError, Database
from cloud_hub.store.records import store_statuses
from fleet.errors import ProtocolError, StoreError
from fleet.ids import NodeId, is_level
from fleet.logs import get_logger
from fleet.protocol import topics
from fleet.protocol.codec import decode
from fleet.protocol.messages import NodeStatus
from fleet.transport.base import Inbound

log = get_logger(__name__)

Said = tuple[NodeId, NodeStatus]


async def follow(
    arrivals: AsyncIterator[Inbound],
    database: Database,
    notices: Notices,
    *,
    limit: int,
    wait_s: float,
) -> None:
    """Notes what arrives, until cancelled.

    A status that cannot be stored is let go: the node's next heartbeat says it again.
    """
    async for batch in batches(arrivals, limit=limit, wait_s=wait_s):
        said = []
        for inbound in batch:
            try:
                said += _read(inbound)
            except ProtocolError as error:
                notices.warn("node status dropped", inbound.topic, str(error))
        try:
            await asyncio.to_thread(_store, database, said, notices)
        except StoreError as error:
            log.error("node states not stored", reason=str(error), states=len(said))
        for inbound in batch:
            inbound.ack()


def _read(inbound: Inbound) -> list[Said]:
    if not inbound.payload:  # the retained state of a node that left the fleet was cleared
        return []
    node, message = topics.sender(inbound.topic), decode(inbound.payload)
    if not isinstance(message, NodeStatus):
        raise ProtocolError(f"{type(message).__name__} is not a node's status")
    if not is_level(node) or not is_level(message.boot_id):
        raise ProtocolError("node or boot id is not usable")
    return [(node, message)]


def _store(database: Database, said: Sequence[Said], notices: Notices) -> None:
    """In one transaction, or in one each if the database refuses a value of one of them."""
    try:
        _store_together(database, said)
    except BadValueError:
        for each in said:
            try:
                _store_together(database, [each])
            except BadValueError as error:
                notices.warn("node status dropped", each[0], str(error))


def _store_together(database: Database, said: Sequence[Said]) -> None:
    if not said:
        return
    now = datetime.now(UTC)
    with database.write() as connection:
        changes = store_statuses(connection, said, now)
    for node, status in changes:
        log.info("node state", node=node, state=status.state, boot_id=status.boot_id)
