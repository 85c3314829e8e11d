"""Rollouts in the database: begun, moved on, ended; and what they are decided by."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, SQLColumnExpression, func, select, update

from cloud_hub.store.database import insert_new, insert_or_update
from cloud_hub.store.groups import grouped
from cloud_hub.store.locks import holder_of
from cloud_hub.store.periods import HOUR_S, Period, begin_of
from cloud_hub.store.tables import (
    CheckSumRow,
    GenerationRow,
    NodeRow,
    RolloutNodeRow,
    RolloutRow,
)
from fleet.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Figures:
    """What devices on one version did.

    Attributes:
        judged: Tokens that the cloud was asked about, and `corrected` of these.
        checked: Tokens kept locally that were checked, and `mismatched` of these.
        pictures: In which tokens were judged.
        deviation: Σ over these of (its corrected - rate of all · its judged)².
    """

    judged: int
    corrected: int
    checked: int
    mismatched: int
    pictures: int
    deviation: float


@dataclass(frozen=True, slots=True)
class Standing:
    """The version that a node runs, and what stands between it and the one it was told to run."""

    version: str
    update: str


State = Literal["running", "widening", "rolling_back", "stopping", "done", "rolled_back", "stopped"]
OPEN: tuple[State, ...] = ("running", "widening", "rolling_back", "stopping")
LOCK = "rollouts"


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout as it stands.

    Attributes:
        plan: The wish, who began it, and `canaries`: the version that each had before.
        holder: Who conducts it now; empty: nobody.
    """

    rollout_id: str
    version: str
    previous: str
    state: State
    reason: str
    plan: Mapping[str, Any]
    started_at: datetime
    ended_at: datetime | None
    holder: str = ""

    @property
    def is_open(self) -> bool:
        """Whether something is left to do."""
        return self.state in OPEN


@dataclass(frozen=True, slots=True)
class NodeStep:
    """Where a node stands in a rollout: stage 0 are the canaries."""

    stage: int
    state: str
    reason: str
    changed_at: datetime


def begin(connection: Connection, rollout: Rollout) -> None:
    """Notes a rollout."""
    fields = asdict(rollout)
    del fields["holder"]
    connection.execute(insert_new(connection, RolloutRow), fields)


def rollouts(connection: Connection, now: datetime, rollout_id: str | None = None) -> list[Rollout]:
    """All rollouts, the newest first; or one of them."""
    names = [name for name in Rollout.__slots__ if hasattr(RolloutRow, name)]
    columns = (getattr(RolloutRow, name) for name in names)
    statement = select(*columns).order_by(RolloutRow.started_at.desc(), RolloutRow.rollout_id)
    if rollout_id is not None:
        statement = statement.where(RolloutRow.rollout_id == rollout_id)
    holder, held = holder_of(connection, LOCK, now)
    found = []
    for row in connection.execute(statement).mappings():
        fields: dict[str, Any] = dict(row)
        found.append(Rollout(**fields, holder=holder if fields["rollout_id"] == held else ""))
    return found


def rollout_of(connection: Connection, rollout_id: str, now: datetime) -> Rollout:
    """One rollout.

    Raises:
        InvalidInputError: There is none of that name.
    """
    found = rollouts(connection, now, rollout_id)
    if not found:
        raise InvalidInputError(
            f"there is no rollout {rollout_id!r}: `cloud_hub rollout list` has them all"
        )
    return found[0]


def nodes_of(connection: Connection, rollout_id: str) -> dict[str, NodeStep]:
    """The nodes of a rollout, canaries first, each by its name."""
    columns = (getattr(RolloutNodeRow, name) for name in ("node_id", *NodeStep.__slots__))
    statement = (
        select(*columns)
        .where(RolloutNodeRow.rollout_id == rollout_id)
        .order_by(RolloutNodeRow.stage, RolloutNodeRow.node_id)
    )
    return {row[0]: NodeStep(*row[1:]) for row in connection.execute(statement)}


def move(
    connection: Connection,
    rollout_id: str,
    state: State,
    reason: str,
    ended_at: datetime | None = None,
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
    """What devices on these versions did in the hours since a moment, its own hour included.

    Checks of a moment more than two days ago count from its day on, as in `Period`.
    """
    since, picture = begin_of(since, HOUR_S), GenerationRow
    by_version = grouped(
        connection, CheckSumRow, ["version"], Period(since), ("checked", "mismatched")
    )
    checks = [sums for version, sums in by_version if version in versions]
    judged, corrected = picture.verified, picture.corrected
    products = (corrected * corrected, corrected * judged, judged * judged)
    counts = connection.execute(
        select(func.count(), *(_total(each) for each in (judged, corrected, *products))).where(
            picture.device_version.in_(versions), picture.received_at >= since, judged > 0
        )
    ).one()
    n, j, c, cc, cj, jj = (int(value) for value in counts)
    rate = c / j if j else 0.0
    deviation = max(cc - 2 * rate * cj + rate * rate * jj, 0.0)
    checked, mismatched = (int(sum(s[name] for s in checks)) for name in ("checked", "mismatched"))
    return Figures(j, c, checked, mismatched, n, deviation)


def _total(column: SQLColumnExpression[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0)
