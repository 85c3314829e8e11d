"""What a hub's database holds of a run, as the checker needs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloud_hub.store import queries
from cloud_hub.store.database import Database
from cloud_hub.store.tables.counted import COUNTS

_MOST = 10_000_000
_AT_ONCE = 500  # names in one query

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """A database's pictures, sums and states.

    Attributes:
        pictures: Rows of `v_picture`, in the order in which they were stored, each with the
            `decisions` of its tokens.
        sums: Each of `COUNTS`, and `pictures`, over `v_acceptance`.
        states: Rows of `node_state`, in the order in which they were stored.
        rejected: Records that were set aside.
        rounds: Federated rounds, number and outcome, in order.
        parts: What became of each node in each of them.
        rollouts: Versions and how their rollouts ended, in the order in which they began.
        offers: Nodes, the versions that they were told to run, and how that stands.
    """

    pictures: Sequence[Row]
    sums: Mapping[str, int]
    states: Sequence[Row]
    rejected: int
    rounds: Sequence[Row] = ()
    parts: Sequence[Row] = ()
    rollouts: Sequence[Row] = ()
    offers: Sequence[Row] = ()


def read_stored(database: Database) -> Stored:
    """What the database holds.

    Raises:
        StoreError: It cannot be read.
    """
    pictures = _rows(database, "SELECT * FROM v_picture ORDER BY id")
    decisions = _decisions(database, [row["generation_id"] for row in pictures])
    names = ("pictures", *COUNTS)
    summed = ", ".join(f"COALESCE(SUM({name}), 0) AS {name}" for name in names)
    (sums,) = _rows(database, f"SELECT {summed} FROM v_acceptance")  # noqa: S608  # our own names
    (rejected,) = _rows(database, "SELECT COUNT(*) AS count FROM rejected_record")
    return Stored(
        [{**row, "decisions": decisions.get(row["generation_id"], b"")} for row in pictures],
        {name: int(value) for name, value in sums.items()},
        _rows(database, "SELECT node_id, boot_id, state FROM node_state ORDER BY id"),
        int(rejected["count"]),
        _rows(database, "SELECT number, outcome FROM round ORDER BY number"),
        _rows(database, "SELECT number, node_id, part, reason FROM round_participant"),
        _rows(database, "SELECT version, state FROM rollout ORDER BY started_at"),
        _rows(
            database,
            "SELECT node_id, version, rollout_node.state AS state"
            " FROM rollout_node JOIN rollout USING (rollout_id)",
        ),
    )


def _rows(database: Database, sql: str) -> list[dict[str, Any]]:
    names, rows = database.select(sql, _MOST)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _decisions(database: Database, names: Sequence[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with database.read() as connection:
        for start in range(0, len(names), _AT_ONCE):
            stories = queries.stories(connection, names[start : start + _AT_ONCE])
            found.update((name, story.decisions) for name, story in stories.items())
    return found
