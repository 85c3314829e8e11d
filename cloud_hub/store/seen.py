"""Which records of a boot are there, as runs of sequence numbers.

The runs outlive the pictures, so a record that comes again is known however late it is. A node
numbers its records one by one, so there is one run, and one more for each gap.
"""

import struct
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Executable, Select, bindparam, select, update

from cloud_hub.store.bulk import write_rows
from cloud_hub.store.database import among, insert_new
from cloud_hub.store.tables import BootRow

Key = tuple[str, str, int]  # node, boot, sequence
Runs = list[tuple[int, int]]  # first and last of each run, rising

_RUN = struct.Struct("<qq")

MOST_RUNS = 1024  # of one boot; beyond it the oldest gaps count as seen


def claim(connection: Connection, keys: Iterable[Key], now: datetime) -> set[Key]:
    """Those of the keys that were not there, which are from now on.

    Boots are locked until the transaction ends, in one order everywhere, so that two hubs which
    get the same record claim it one after the other.
    """
    wanted: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for node, boot, sequence in keys:
        wanted[node, boot].add(sequence)
    if not wanted:
        return set()
    new: set[Key] = set()
    changed = []
    for (node, boot), seen in _locked(connection, wanted, now):
        runs = unpack(seen)
        fresh = {number for number in wanted[node, boot] if not holds(runs, number)}
        new |= {(node, boot, number) for number in fresh}
        if fresh:
            changed.append((node, boot, pack(add(runs, fresh)), now))
    write_rows(connection, _note(), ("node", "boot", "seen", "last_seen_at"), changed)
    return new


def _locked(
    connection: Connection, boots: Collection[tuple[str, str]], now: datetime
) -> list[tuple[tuple[str, str], bytes]]:
    """What was seen of boots; those that are not there yet are made, before any is locked."""
    there = _read(connection, boots, _those(connection.dialect.name))
    if len(there) == len(boots) and connection.dialect.name == "sqlite":
        return there  # nobody else writes meanwhile
    names = ("node_id", "boot_id", "seen", "first_seen_at", "last_seen_at")
    rows = [(*boot, b"", now, now) for boot in sorted(set(boots) - {boot for boot, _ in there})]
    write_rows(connection, insert_new(connection, BootRow), names, rows)
    return _read(connection, boots, _locking(connection.dialect.name))


def _read(
    connection: Connection, boots: Collection[tuple[str, str]], query: Select[Any]
) -> list[tuple[tuple[str, str], bytes]]:
    nodes, names = (sorted(set(each)) for each in zip(*boots, strict=True))
    rows = connection.execute(query, {"nodes": nodes, "boots": names}).all()
    return [((node, boot), seen) for node, boot, seen in rows if (node, boot) in boots]


# Making a statement takes longer than running it: each is made once.


@cache
def _those(dialect: str) -> Select[Any]:
    """Boots of some `nodes` with some names (`boots`), in order."""
    key = (BootRow.node_id, BootRow.boot_id)
    asked = (among(dialect, key[0], "nodes"), among(dialect, key[1], "boots"))
    query: Any = select(*key, BootRow.seen).where(*asked).order_by(*key)
    return query  # type: ignore[no-any-return]


@cache
def _locking(dialect: str) -> Select[Any]:
    return _those(dialect).with_for_update()


@cache
def _note() -> Executable:
    columns = BootRow.__table__.c
    same = (columns.node_id == bindparam("node")) & (columns.boot_id == bindparam("boot"))
    return update(BootRow).where(same)


def unpack(data: bytes) -> Runs:
    """The runs of a boot."""
    return list(_RUN.iter_unpack(data))


def pack(runs: Runs) -> bytes:
    """Runs as pairs of little-endian i64."""
    return b"".join(_RUN.pack(*run) for run in runs)


def holds(runs: Runs, number: int) -> bool:
    """Whether a number lies in a run."""
    index = bisect(runs, number, key=lambda run: run[0]) - 1
    return index >= 0 and number <= runs[index][1]


def add(runs: Runs, numbers: Iterable[int]) -> Runs:
    """The runs with the numbers in them; at most `MOST_RUNS`, the lowest gaps closed."""
    merged: Runs = []
    for first, last in sorted([*runs, *((number, number) for number in numbers)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    if len(merged) > MOST_RUNS:
        return [(merged[0][0], merged[-MOST_RUNS][1]), *merged[-MOST_RUNS + 1 :]]
    return merged
