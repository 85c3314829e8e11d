"""Rollouts in the database: begun, moved on, ended; and what they are decided by."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select, update

from cloud_hub.store.database import insert_new, insert_or_update
from cloud_hub.store.sums import rows_of
from cloud_hub.store.tables import CheckSumRow, NodeRow, RolloutNodeRow, RolloutRow, SumRow


@dataclass(frozen=True, slots=True)
class Figures:
    """What devices on one version did: tokens judged and of these corrected by the cloud, tokens
    checked of those kept locally and of these mismatched."""

    judged: int
    corrected: int
    checked: int
    mismatched: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The version that a node runs, and what stands between it and the one it was told to run."""

    version: str
    update: str


def begin(connection: Connection, row: dict[str, Any]) -> None:
    """Notes a rollout; `RolloutRow` says of what."""
    connection.execute(insert_new(connection, RolloutRow), row)


def move(
    connection: Connection, rollout_id: str, state: str, reason: str, ended_at: datetime | None
) -> None:
    """Says how a rollout stands."""
    values = {"state": state, "reason": reason, "ended_at": ended_at}
    connection.execute(update(RolloutRow).where(RolloutRow.rollout_id == rollout_id).values(values))


def note_node(connection: Connection, row: dict[str, Any]) -> None:
    """Says where a node stands; `RolloutNodeRow` says in what."""
    changed = {"stage", "state", "reason", "changed_at"}
    connection.execute(insert_or_update(connection, RolloutNodeRow, changed), row)


def ready_nodes(connection: Connection) -> dict[str, Standing]:
    """The nodes that are up."""
    columns = (NodeRow.node_id, NodeRow.device_version, NodeRow.facts)
    rows = connection.execute(select(*columns).where(NodeRow.state == "ready"))
    return {row.node_id: Standing(row.device_version, row.facts.get("update", "")) for row in rows}


def figures(connection: Connection, versions: list[str], since: datetime) -> Figures:
    """What devices on these versions did in the hours since a moment, its own hour included."""
    since = since.replace(minute=0, second=0, microsecond=0)
    found: list[int] = []
    for row, names in (
        (SumRow, ("verified", "corrected")),
        (CheckSumRow, ("checked", "mismatched")),
    ):
        there = rows_of(row).c
        sums = (func.coalesce(func.sum(there[name]), 0) for name in names)
        chosen = (there.device_version.in_(versions), there.starts_at >= since)
        found += [int(value) for value in connection.execute(select(*sums).where(*chosen)).one()]
    return Figures(*found)
