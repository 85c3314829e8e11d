"""What the hub writes about pictures and nodes; each function is one statement or a few."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Executable, Select, select

from cloud_hub.store.bulk import write_rows
from cloud_hub.store.database import (
    BadValueError,
    Database,
    among,
    insert_new,
    insert_or_update,
)
from cloud_hub.store.days import make_days
from cloud_hub.store.seen import claim
from cloud_hub.store.sums import count_pictures
from cloud_hub.store.tables import GenerationRow, NodeRow, NodeStateRow, RejectedRecordRow
from cloud_hub.store.tokens import store_tokens
from fleet.ids import NodeId
from fleet.protocol.codec import MAX_MESSAGE_BYTES, without
from fleet.protocol.messages import GenerationRecord, NodeStatus, Sampling


@dataclass(frozen=True, slots=True)
class Reported:
    """A record, the node whose topic it came by, and the bytes it came in."""

    node: NodeId
    record: GenerationRecord
    payload: bytes

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes a record the same record."""
        return self.node, self.record.boot_id, self.record.sequence


@dataclass(frozen=True, slots=True)
class Rejected:
    """A payload from a record topic that cannot be stored, and why."""

    node: NodeId
    payload: bytes
    reason: str


def store_batch(
    database: Database, reports: Sequence[Reported], rejected: Sequence[Rejected], now: datetime
) -> list[Rejected]:
    """Stores records and sets aside what is none, in one transaction.

    If the database refuses a value, each record gets a transaction of its own, and those that
    are refused are set aside too; they are returned.

    Raises:
        StoreError: The database cannot be written; what came comes again and does no harm.
    """
    try:
        with database.write() as connection:
            store_pictures(connection, reports, now)
            set_aside(connection, rejected, now)
    except BadValueError:
        return _store_one_by_one(database, reports, rejected, now)
    return []


def _store_one_by_one(
    database: Database, reports: Sequence[Reported], rejected: Sequence[Rejected], now: datetime
) -> list[Rejected]:
    refused = []
    for report in reports:
        try:
            with database.write() as connection:
                store_pictures(connection, [report], now)
        except BadValueError as error:
            refused.append(Rejected(report.node, report.payload, str(error)))
    with database.write() as connection:
        set_aside(connection, [*rejected, *refused], now)
    return refused


def store_pictures(connection: Connection, reports: Iterable[Reported], now: datetime) -> int:
    """Stores records that are not there yet; the number of new ones."""
    by_key = {report.key: report for report in reports}
    if not by_key:
        return 0
    make_days(connection, now)
    _know_nodes(connection, {node for node, _, _ in by_key}, now)
    new = [by_key[key] for key in sorted(claim(connection, by_key, now))]
    if new:
        rows = [(*_reported(report), now) for report in new]
        write_rows(connection, _insert_pictures(), (*_FIELDS, "received_at"), rows)
        count_pictures(connection, [(report.node, report.record) for report in new], now)
        store_tokens(connection, [(report.node, report.record) for report in new], now)
    return len(new)


def set_aside(connection: Connection, rejected: Iterable[Rejected], now: datetime) -> None:
    """Keeps payloads that cannot be stored as records, each once, and no picture in them."""
    rows = [
        {
            "node_id": each.node,
            "received_at": now,
            "reason": each.reason.replace("\0", ""),
            "payload_hash": hashlib.sha256(each.payload).hexdigest(),
            "payload": without(each.payload, "unseen")[:MAX_MESSAGE_BYTES],
        }
        for each in rejected
    ]
    if rows:
        connection.execute(insert_new(connection, RejectedRecordRow), rows)


def store_statuses(
    connection: Connection, said: Sequence[tuple[NodeId, NodeStatus]], now: datetime
) -> list[tuple[NodeId, NodeStatus]]:
    """Notes what nodes say of themselves, in order; those whose state or boot has changed by it.

    The will of a boot that is over says nothing about the one that runs.
    """
    columns = (NodeRow.node_id, NodeRow.boot_id, NodeRow.state)
    found = connection.execute(
        select(*columns).where(NodeRow.node_id.in_({node for node, _ in said}))
    )
    present = {node: (boot, state) for node, boot, state in found}
    rows: dict[NodeId, dict[str, Any]] = {}
    changes = []
    for node, status in said:
        boot, state = present.get(node, ("", ""))
        if status.state == "lost" and boot not in {"", status.boot_id}:
            continue
        rows[node] = status.model_dump(exclude={"type", "at"})
        if (boot, state) != (status.boot_id, status.state):
            changes.append((node, status))
            present[node] = (status.boot_id, status.state)
    if rows:
        told = {name for row in rows.values() for name in row} | {"last_seen_at"}
        here = {"first_seen_at": now, "last_seen_at": now}
        # In one order everywhere, so that two hubs never wait for each other's rows.
        every = [rows[node] | here | {"node_id": node} for node in sorted(rows)]
        connection.execute(insert_or_update(connection, NodeRow, told), every)
    if changes:
        connection.execute(
            NodeStateRow.__table__.insert(),  # type: ignore[attr-defined]
            [
                {
                    "node_id": node,
                    "boot_id": status.boot_id,
                    "state": status.state,
                    "at": status.at,
                    "received_at": now,
                }
                for node, status in changes
            ],
        )
    return changes


def _know_nodes(connection: Connection, nodes: set[str], now: datetime) -> None:
    """Makes rows for nodes that are not there yet: a record may come before the first status."""
    known = set(
        connection.execute(_known(connection.dialect.name), {"nodes": sorted(nodes)})
        .scalars()
        .all()
    )
    if nodes <= known:
        return
    empty: dict[str, Any] = dict.fromkeys(
        ("boot_id", "state", "agent_version", "device_version", "family"), ""
    )
    empty |= {"facts": {}, "pictures": 0, "outbox_records": 0}
    empty |= {"first_seen_at": now, "last_seen_at": now}
    # In one order everywhere, so that two hubs never wait for each other's rows.
    rows = [empty | {"node_id": node} for node in sorted(nodes - known)]
    connection.execute(insert_new(connection, NodeRow), rows)


# Making a statement takes longer than running it: each is made once.


@cache
def _known(dialect: str) -> Select[str]:
    return select(NodeRow.node_id).where(among(dialect, NodeRow.node_id, "nodes"))


@cache
def _insert_pictures() -> Executable:
    return GenerationRow.__table__.insert().inline()  # type: ignore[attr-defined,no-any-return]


# A picture's columns beside the moment, and where a report has them.
_FIELDS = tuple(
    column.name
    for column in GenerationRow.__table__.columns
    if column.name not in {"id", "received_at"}
)


def _place(field: str) -> str:
    if field == "node_id":
        return "node"
    return f"record.sampling.{field}" if field in Sampling.model_fields else f"record.{field}"


_reported = attrgetter(*map(_place, _FIELDS))
