"""Spot checks in the database: written, counted once their records are there, and read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, and_, false, select, text, true, update

from cloud_hub.store.database import insert_new
from cloud_hub.store.periods import HOUR_S, begin_of
from cloud_hub.store.sums import Sums, first_open_hour
from cloud_hub.store.tables import CheckSumRow, GenerationRow, SpotCheckRow
from fleet.buckets import regions, score_bins

MOST = 10_000  # checks that are read at once: what is sought in them has margins of a percent
_AT_ONCE = 512  # checks of one transaction
_LOCK = 0x63696174  # PostgreSQL's advisory lock for counting
_LOCAL = 1  # its code among the decisions
_POSITIONS = 1 << 16  # more than a picture has
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
    sums, open_hour = Sums(), first_open_hour(connection)
    for first, picture in _pictures(waiting, known):
        _add(sums, max(begin_of(first.checked_at, HOUR_S), open_hour), picture)
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
    """The pictures checked since then (or ever) whose records are there, oldest first.

    Of more than `MOST` checks the newest count.
    """
    wanted = and_(
        _C.checked_at >= since if since is not None else true(),
        _C.node_id == node if node is not None else true(),
        _G.device_version == device_version if device_version is not None else true(),
        _G.policy == policy if policy is not None else true(),
    )
    newest = (_C.checked_at.desc(), _C.check_id.desc())
    rows = connection.execute(_joined().where(wanted).order_by(*newest).limit(MOST)).all()
    return [picture for _, picture in _pictures(rows[::-1], {})]


def _joined() -> Select[Any]:
    checked = list(SpotCheckRow.__table__.columns)
    reported = (_G.device_version, _G.policy, _G.threshold, _G.tokens, _G.scores, _G.decisions)
    same = and_(_G.generation_id == _C.generation_id, _G.node_id == _C.node_id)
    return select(*checked, *reported, _G.local.label("local_tokens")).join(_G, same)


def _counted_positions(
    connection: Connection, generations: Iterable[str]
) -> Mapping[tuple[str, str], set[int]]:
    known: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    query = select(_C.node_id, _C.generation_id, _C.positions).where(
        _C.is_counted == true(), _C.generation_id.in_(sorted(set(generations)))
    )
    for node, generation, positions in connection.execute(query):
        known[node, generation] |= set(np.frombuffer(positions, "<u2").tolist())
    return known


def _pictures(
    rows: Sequence[Row[Any]], without: Mapping[tuple[str, str], set[int]]
) -> list[tuple[Row[Any], CheckedPicture]]:
    """Each picture of the checks, once, with its first check; all are looked at together.

    A position that is checked again is left out, and so is one that is in `without` for its node
    and generation: a picture that was opened again runs its tokens again, so positions repeat.
    """
    if not rows:
        return []
    place: dict[tuple[str, str], int] = {}
    of_row = [place.setdefault((row.node_id, row.generation_id), len(place)) for row in rows]
    counts = [len(row.local) for row in rows]
    picture = np.repeat(of_row, counts)
    positions = _joined_up(rows, "positions", "<u2").astype(np.int64)
    local = _joined_up(rows, "local", np.uint8).astype(bool)
    # What the record says of a position: its tokens lie one picture after the other.
    told = [min(len(row.scores), len(row.decisions)) for row in rows]
    begins = np.repeat(np.cumsum([0, *told[:-1]]), counts)
    inside = positions < np.repeat(told, counts)
    at = np.where(inside, begins + positions, 0)
    scores, decisions = (_tokens(rows, name, told) for name in ("scores", "decisions"))
    stands = inside & (local == (decisions[at] == _LOCAL))
    key = picture * _POSITIONS + positions
    first = np.zeros(len(key), bool)
    first[np.unique(key, return_index=True)[1]] = True
    taken = [place[p] * _POSITIONS + position for p in place for position in without.get(p, ())]
    kept = np.flatnonzero(stands & first & ~np.isin(key, np.array(taken, np.int64)))
    kept = kept[np.argsort(picture[kept], kind="stable")]
    ends = np.cumsum(np.bincount(picture[kept], minlength=len(place))).tolist()
    columns: dict[str, NDArray[Any]] = {
        "positions": positions[kept],
        "scores": scores[at[kept]],
        "local": local[kept],
        "matches": _joined_up(rows, "matches", np.uint8).astype(bool)[kept],
        "harms": _joined_up(rows, "harms", "<f2").astype(np.float64)[kept],
        "probabilities": _joined_up(rows, "probabilities", "<f2").astype(np.float64)[kept],
    }
    firsts = [rows[index] for index in np.unique(of_row, return_index=True)[1]]
    return [
        (row, _checked(row, {name: column[begin:end] for name, column in columns.items()}))
        for row, begin, end in zip(firsts, [0, *ends[:-1]], ends, strict=True)
    ]


def _joined_up(rows: Sequence[Row[Any]], name: str, kind: Any) -> NDArray[Any]:
    return np.frombuffer(b"".join(getattr(row, name) for row in rows), kind)


def _tokens(rows: Sequence[Row[Any]], name: str, told: Sequence[int]) -> NDArray[np.uint8]:
    """What records say of as many tokens each, and one more for where they say nothing."""
    parts = (getattr(row, name)[:count] for row, count in zip(rows, told, strict=True))
    return np.frombuffer(b"".join(parts) + b"\0", np.uint8)


def _checked(row: Row[Any], columns: Mapping[str, NDArray[Any]]) -> CheckedPicture:
    return CheckedPicture(
        node=row.node_id,
        generation=row.generation_id,
        device_version=row.device_version,
        cloud_version=row.cloud_version,
        policy=row.policy,
        threshold=row.threshold,
        tokens=row.tokens,
        local_tokens=row.local_tokens,
        **columns,
    )


def _add(sums: Sums, hour: datetime, picture: CheckedPicture) -> None:
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
