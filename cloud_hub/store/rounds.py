"""Runs of rounds in the database: begun, opened, committed, told of."""

import io
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgpack
from sqlalchemy import Connection, case, func, select, update

from cloud_hub.store.database import Database, insert_new, insert_or_update, is_inserted
from cloud_hub.store.tables import (
    NodeRow,
    RoundLockRow,
    RoundParticipantRow,
    RoundRow,
    RoundRunRow,
)
from fleet.errors import InvalidInputError, StoreError
from fleet.federation.ledger import (
    Commit,
    Member,
    Opening,
    Participant,
    pack_arrays,
    unpack_arrays,
)

LOCK = "rounds"
_CONTENTS_KEPT = 2  # rounds of a run whose weights are kept
State = Literal["waiting", "running", "stopping", "stopped", "interrupted", "done", "failed"]
_Run, _Round, _Part, _Lock = RoundRunRow, RoundRow, RoundParticipantRow, RoundLockRow


@dataclass(frozen=True, slots=True)
class Run:
    """A run of rounds as it stands."""

    run_id: str
    state: State
    started_by: str
    reason: str
    plan: Mapping[str, Any]
    base_version: str
    head_version: str
    progress: Mapping[str, Any]
    created_at: datetime
    ended_at: datetime | None
    rounds: int = 0  # that ended
    kept: int = 0
    holder: str = ""  # who conducts it now

    @property
    def is_interrupted(self) -> bool:
        """Whether its process has ended without its doing: it may be taken up."""
        orphan = self.state in {"running", "stopping"} and not self.holder
        return self.state == "interrupted" or orphan


@dataclass(frozen=True, slots=True)
class Ended:
    """A round that ended, or is open, with its nodes by name."""

    number: int
    outcome: str
    reason: str
    figures: Mapping[str, float]
    opened_at: datetime
    duration_s: float
    nodes: tuple[tuple[str, Participant], ...]


# ── Runs ──────────────────────────────────────────────────────────────────────────────────


def begin(connection: Connection, run: Run, head: bytes) -> None:
    """Notes a new run.

    Raises:
        InvalidInputError: There is one of that name.
    """
    fields = asdict(run)
    for name in ("rounds", "kept", "holder"):
        del fields[name]
    if not is_inserted(connection, _Run, {**fields, "head": head}):
        raise InvalidInputError(
            f"there is a run {run.run_id!r} already: resume it, or take another name"
        )


def runs(connection: Connection, now: datetime, run_id: str | None = None) -> list[Run]:
    """All runs, the newest first; or one of them."""
    names = [name for name in Run.__slots__ if hasattr(_Run, name)]
    ended = (
        select(
            _Round.run_id,
            func.sum(case((_Round.outcome != "open", 1), else_=0)).label("rounds"),
            func.sum(case((_Round.outcome == "kept", 1), else_=0)).label("kept"),
        )
        .group_by(_Round.run_id)
        .subquery()
    )
    mine = (_Lock.name == LOCK, _Lock.until > now)
    lock = select(_Lock.run_id, _Lock.holder).where(*mine).subquery()
    statement = (
        select(
            *(getattr(_Run, name) for name in names), ended.c.rounds, ended.c.kept, lock.c.holder
        )
        .select_from(_Run)
        .outerjoin(ended, ended.c.run_id == _Run.run_id)
        .outerjoin(lock, lock.c.run_id == _Run.run_id)
        .order_by(_Run.created_at.desc(), _Run.run_id)
    )
    if run_id is not None:
        statement = statement.where(_Run.run_id == run_id)
    found = []
    for row in connection.execute(statement):
        fields: dict[str, Any] = dict(zip(names, row, strict=False))
        rounds, kept = int(row.rounds or 0), int(row.kept or 0)
        found.append(Run(**fields, rounds=rounds, kept=kept, holder=row.holder or ""))
    return found


def run_of(connection: Connection, run_id: str, now: datetime) -> Run:
    """One run.

    Raises:
        InvalidInputError: There is none of that name.
    """
    found = runs(connection, now, run_id)
    if not found:
        raise InvalidInputError(f"there is no run {run_id!r}: `cloud_hub rounds list` has them all")
    return found[0]


def head_of(connection: Connection, run_id: str) -> bytes:
    """The head that a run trains, as an npz."""
    return bytes(connection.execute(select(_Run.head).where(_Run.run_id == run_id)).scalar_one())


def set_state(
    connection: Connection, run_id: str, state: State, reason: str, ended_at: datetime | None
) -> None:
    """Moves a run on."""
    values: dict[str, Any] = {"state": state, "reason": reason, "ended_at": ended_at}
    if state != "running":
        values["progress"] = {}
    connection.execute(update(_Run).where(_Run.run_id == run_id).values(values))


def state_of(connection: Connection, run_id: str) -> str:
    """Where a run stands."""
    return str(connection.execute(select(_Run.state).where(_Run.run_id == run_id)).scalar_one())


def note_progress(connection: Connection, run_id: str, progress: Mapping[str, Any]) -> None:
    """Says what a run waits for."""
    connection.execute(update(_Run).where(_Run.run_id == run_id).values(progress=dict(progress)))


def rounds_of(connection: Connection, run_id: str) -> list[Ended]:
    """The rounds of a run, in order."""
    nodes = _nodes(connection, run_id)
    statement = select(_Round).where(_Round.run_id == run_id).order_by(_Round.number)
    return [
        Ended(
            row["number"],
            row["outcome"],
            row["reason"],
            row["figures"],
            row["opened_at"],
            row["duration_s"],
            tuple(nodes[row["number"]]),
        )
        for row in connection.execute(statement).mappings()
    ]


def _nodes(connection: Connection, run_id: str) -> Mapping[int, list[tuple[str, Participant]]]:
    found: defaultdict[int, list[tuple[str, Participant]]] = defaultdict(list)
    statement = select(_Part).where(_Part.run_id == run_id).order_by(_Part.number, _Part.node_id)
    for row in connection.execute(statement).mappings():
        fields = {name: row[name] for name in Participant.__slots__ if name != "node"}
        part = Participant(node=row["node_number"], **fields)
        found[row["number"]].append((row["node_id"], part))
    return found


def node_ids(connection: Connection) -> list[str]:
    """All nodes that were ever heard of."""
    return list(connection.execute(select(NodeRow.node_id)).scalars())


# ── The ledger ────────────────────────────────────────────────────────────────────────────


class DatabaseLedger:
    """The ledger of one run; see `fleet.federation.ledger.Ledger`."""

    def __init__(self, database: Database, run_id: str, name_of: Callable[[int], str]) -> None:
        """`name_of` gives the node id of a node's number in the run."""
        self._database, self._run_id, self._name_of = database, run_id, name_of

    def opened(self) -> Opening | None:
        """See `Ledger`."""
        statement = select(_Round.number, _Round.seed, _Round.opening).where(
            _Round.run_id == self._run_id, _Round.outcome == "open"
        )
        with self._database.read() as connection:
            row = connection.execute(statement).one_or_none()
        if row is None:
            return None
        return Opening(
            row.number,
            row.seed,
            tuple(Member(**each) for each in row.opening["cohort"]),
            tuple(Participant(**each) for each in row.opening["set_aside"]),
        )

    def last(self) -> Commit | None:
        """See `Ledger`."""
        statement = (
            select(_Round)
            .where(_Round.run_id == self._run_id, _Round.outcome != "open")
            .order_by(_Round.number.desc())
            .limit(1)
        )
        with self._database.read() as connection:
            row = connection.execute(statement).mappings().one_or_none()
            nodes = _nodes(connection, self._run_id)
        if row is None:
            return None
        change, strategy_state, accountant = _unpack(row["content"])
        return Commit(
            number=row["number"],
            outcome=row["outcome"],
            reason=row["reason"],
            change=change,
            strategy_state=strategy_state,
            accountant=accountant,
            participants=tuple(part for _, part in nodes[row["number"]]),
            figures=row["figures"],
            duration_s=row["duration_s"],
        )

    def open(self, opening: Opening) -> None:
        """See `Ledger`."""
        row = {
            "run_id": self._run_id,
            "number": opening.number,
            "outcome": "open",
            "reason": "",
            "seed": opening.seed,
            "opening": {
                "cohort": [asdict(each) for each in opening.cohort],
                "set_aside": [asdict(each) for each in opening.set_aside],
            },
            "figures": {},
            "content": None,
            "opened_at": datetime.now(UTC),
            "ended_at": None,
            "duration_s": 0.0,
        }
        with self._database.write() as connection:
            connection.execute(insert_new(connection, _Round), row)

    def commit(self, commit: Commit) -> None:
        """See `Ledger`; weights, state, nodes and bytes in one transaction."""
        values = {
            "outcome": commit.outcome,
            "reason": commit.reason,
            "figures": {k: v for k, v in commit.figures.items() if math.isfinite(v)},
            "opening": {},  # what is to be known of it stands with the nodes now
            "content": _pack(commit),
            "ended_at": datetime.now(UTC),
            "duration_s": commit.duration_s,
        }
        this = (_Round.run_id == self._run_id, _Round.number == commit.number)
        parts = [self._part(commit.number, each) for each in commit.participants]
        old = (_Round.run_id == self._run_id, _Round.number <= commit.number - _CONTENTS_KEPT)
        with self._database.write() as connection:
            connection.execute(update(_Round).where(*this).values(values))
            if parts:
                changed = {*RoundParticipantRow.__table__.columns.keys()} - {
                    "run_id",
                    "number",
                    "node_number",
                }
                connection.execute(insert_or_update(connection, _Part, changed), parts)
            connection.execute(update(_Round).where(*old).values(content=None))

    def _part(self, number: int, part: Participant) -> dict[str, Any]:
        fields = asdict(part)
        node = fields.pop("node")
        return {
            "run_id": self._run_id,
            "number": number,
            "node_number": node,
            "node_id": self._name_of(node),
            **fields,
        }


def pack_npz(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as an npz."""
    import numpy as np

    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _pack(commit: Commit) -> bytes:
    packed: bytes = msgpack.packb(
        {
            "change": pack_arrays(commit.change),
            "strategy_state": pack_arrays(commit.strategy_state),
            "accountant": commit.accountant,
        }
    )
    return packed


def _unpack(content: bytes | None) -> tuple[Any, Any, Any]:
    if content is None:
        raise StoreError("the weights of the last round are gone: begin a new run")
    found = msgpack.unpackb(content)
    return (
        unpack_arrays(found["change"]),
        unpack_arrays(found["strategy_state"]),
        found["accountant"],
    )
