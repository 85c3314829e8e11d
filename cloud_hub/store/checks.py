"""Spot checks in the database: written, counted once their records are there, and read."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, and_, false, select, text, true, update

from cloud_hub.store.database import insert_new
from cloud_hub.store.sums import HOUR_S, Sums, hour_of
from cloud_hub.store.tables import CheckSumRow, GenerationRow, SpotCheckRow
from fleet.buckets import regions, score_bins

_AT_ONCE = 512  # checks of one transaction
_LOCK = 0x63696174  # PostgreSQL's advisory lock for counting
_LOCAL = 1  # its code among the decisions
_G, _C = GenerationRow, SpotCheckRow

Mask = NDArray[np.bool_]
Numbers = NDArray[np.floating]


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """What the cloud's law says of drafts [k] of one picture; `SpotCheckRow` has the units."""

    check_id: str
    node: str
    generation: str
    cloud_version: str
    positions: NDArray[np.int64]
    local: Mask
    matches: Mask
    harms: Numbers
    probabilities: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class CheckedPicture:
    """A picture's checked positions [k], each once, with what its record says of them.

    Attributes:
        scores: The device's, as codes of `fleet/protocol/arrays.py: pack_scores`.
        local: Whether the device accepted it; the others were judged in the course of things.
        matches: Whether the cloud draws the same token from the shared noise.
        harms: Squared distance of both draws' code vectors, 0 to 4.
        probabilities: Of the device's token under the cloud's sampled law.
        tokens, local_tokens: Of the whole picture.
    """

    node: str
    generation: str
    device_version: str
    cloud_version: str
    policy: str
    threshold: float
    tokens: int
    local_tokens: int
    positions: NDArray[np.int64]
    scores: NDArray[np.uint8]
    local: Mask
    matches: Mask
    harms: Numbers
    probabilities: Numbers


def store_checks(connection: Connection, checks: Sequence[Check], now: datetime) -> None:
    """Writes checks, each once."""
    if checks:
        rows = [_row(check, now) for check in checks]
        connection.execute(insert_new(connection, SpotCheckRow), rows)


def count_checks(connection: Connection) -> int:
    """Adds checks whose records are there to the sums, one process at a time; how many."""
    if connection.dialect.name != "sqlite":
        taken = connection.execute(text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": _LOCK})
        if not taken.scalar_one():
            return 0
    waiting = connection.execute(
        _joined()
        .where(_C.is_counted == false())
        .order_by(_C.checked_at, _C.check_id)
        .limit(_AT_ONCE)
    ).all()
    if not waiting:
        return 0
    known = _counted_positions(connection, [row.generation_id for row in waiting])
    sums = Sums()
    for row in waiting:
        taken_before = known[row.node_id, row.generation_id]
        _add(sums, row, _picture([row], taken_before))
        taken_before |= set(_unpack(row).positions.tolist())
    sums.write(connection)
    done = [row.check_id for row in waiting]
    connection.execute(update(_C).where(_C.check_id.in_(done)).values(is_counted=True))
    return len(waiting)


def checked_pictures(
    connection: Connection,
    since: datetime | None = None,
    *,
    node: str | None = None,
    device_version: str | None = None,
    policy: str | None = None,
) -> list[CheckedPicture]:
    """The pictures checked since then (or ever) whose records are there, oldest first."""
    wanted = and_(
        _C.checked_at >= since if since is not None else true(),
        _C.node_id == node if node is not None else true(),
        _G.device_version == device_version if device_version is not None else true(),
        _G.policy == policy if policy is not None else true(),
    )
    rows = connection.execute(_joined().where(wanted).order_by(_C.checked_at, _C.check_id))
    by_picture: defaultdict[tuple[str, str], list[Row[Any]]] = defaultdict(list)
    for row in rows:
        by_picture[row.node_id, row.generation_id].append(row)
    return [_picture(found, set()) for found in by_picture.values()]


def _joined() -> Select[Any]:
    checked = list(SpotCheckRow.__table__.columns)
    reported = (_G.device_version, _G.policy, _G.threshold, _G.tokens, _G.scores, _G.decisions)
    same = and_(_G.generation_id == _C.generation_id, _G.node_id == _C.node_id)
    return select(*checked, *reported, _G.local.label("local_tokens")).join(_G, same)


def _counted_positions(
    connection: Connection, generations: Iterable[str]
) -> defaultdict[tuple[str, str], set[int]]:
    known: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    query = select(_C.node_id, _C.generation_id, _C.positions).where(
        _C.is_counted == true(), _C.generation_id.in_(sorted(set(generations)))
    )
    for node, generation, positions in connection.execute(query):
        known[node, generation] |= set(np.frombuffer(positions, "<u2").tolist())
    return known


def _picture(rows: Sequence[Row[Any]], without: set[int]) -> CheckedPicture:
    """The checks of one picture as one; a position that is checked again is left out.

    A picture that was opened again runs its tokens again, so positions repeat.
    """
    first, checks = rows[0], [_unpack(row) for row in rows]
    positions = np.concatenate([check.positions for check in checks])
    scores, decisions = (np.frombuffer(data, np.uint8) for data in (first.scores, first.decisions))
    local = np.concatenate([check.local for check in checks])
    kept, seen = np.zeros(len(positions), bool), set(without)
    for index, position in enumerate(positions.tolist()):
        stands = position < min(len(scores), len(decisions)) and (
            bool(local[index]) == bool(decisions[position] == _LOCAL)
        )
        kept[index] = stands and position not in seen
        seen.add(position)
    return CheckedPicture(
        node=first.node_id,
        generation=first.generation_id,
        device_version=first.device_version,
        cloud_version=first.cloud_version,
        policy=first.policy,
        threshold=first.threshold,
        tokens=first.tokens,
        local_tokens=first.local_tokens,
        positions=positions[kept],
        scores=scores[positions[kept]],
        local=local[kept],
        matches=np.concatenate([check.matches for check in checks])[kept],
        harms=np.concatenate([check.harms for check in checks])[kept],
        probabilities=np.concatenate([check.probabilities for check in checks])[kept],
    )


def _add(sums: Sums, row: Row[Any], picture: CheckedPicture) -> None:
    hour = hour_of(row.checked_at)
    versions = (picture.device_version, picture.cloud_version, picture.policy)
    span = (hour, HOUR_S, picture.node, *versions)
    local = picture.local
    cells = zip(
        regions(picture.positions[local], picture.tokens).tolist(),
        score_bins(picture.scores[local]).tolist(),
        picture.matches[local].tolist(),
        picture.harms[local].tolist(),
        picture.probabilities[local].tolist(),
        strict=True,
    )
    for region, score_bin, match, harm, probability in cells:
        counted = {"checked": 1, "mismatched": int(not match)}
        found = counted | {"harm": harm, "probability": probability}
        sums.add(CheckSumRow, span, (region, score_bin), found)


def _row(check: Check, now: datetime) -> dict[str, Any]:
    return {
        "check_id": check.check_id,
        "node_id": check.node,
        "generation_id": check.generation,
        "cloud_version": check.cloud_version,
        "checked_at": now,
        "is_counted": False,
        "positions": check.positions.astype("<u2").tobytes(),
        "local": check.local.astype(np.uint8).tobytes(),
        "matches": check.matches.astype(np.uint8).tobytes(),
        "harms": check.harms.astype("<f2").tobytes(),
        "probabilities": check.probabilities.astype("<f2").tobytes(),
    }


def _unpack(row: Row[Any]) -> Check:
    return Check(
        check_id=row.check_id,
        node=row.node_id,
        generation=row.generation_id,
        cloud_version=row.cloud_version,
        positions=np.frombuffer(row.positions, "<u2").astype(np.int64),
        local=np.frombuffer(row.local, np.uint8).astype(bool),
        matches=np.frombuffer(row.matches, np.uint8).astype(bool),
        harms=np.frombuffer(row.harms, "<f2").astype(np.float64),
        probabilities=np.frombuffer(row.probabilities, "<f2").astype(np.float64),
    )
