"""Which records of a boot are there, as runs of sequence numbers.

The runs outlive the pictures, so a record that comes again is known however late it is. A node
numbers its records one by one, so there is one run, and one more for each gap.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select, tuple_, update

from cloud_hub.store.database import insert_new
from cloud_hub.store.tables import BootRow

Key = tuple[str, str, int]  # node, boot, sequence
Runs = NDArray[np.int64]  # [n, 2]: first and last of each run, rising

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
    new, changed = set(), []
    for (node, boot), seen in _locked(connection, sorted(wanted), now).items():
        runs = unpack(seen)
        fresh = {number for number in wanted[node, boot] if not holds(runs, number)}
        new |= {(node, boot, number) for number in fresh}
        if fresh:
            row = {"node": node, "boot": boot, "seen": pack(add(runs, fresh)), "last_seen_at": now}
            changed.append(row)
    if changed:
        table = BootRow.__table__
        same = (table.c.node_id == bindparam("node")) & (table.c.boot_id == bindparam("boot"))
        connection.execute(update(BootRow).where(same), changed)
    return new


def _locked(
    connection: Connection, boots: list[tuple[str, str]], now: datetime
) -> dict[tuple[str, str], bytes]:
    noted = {"seen": b"", "first_seen_at": now, "last_seen_at": now}
    rows = [noted | {"node_id": node, "boot_id": boot} for node, boot in boots]
    connection.execute(insert_new(connection, BootRow), rows)
    key = (BootRow.node_id, BootRow.boot_id)
    query = select(*key, BootRow.seen).where(tuple_(*key).in_(boots)).order_by(*key)
    found = connection.execute(query.with_for_update())
    return {(node, boot): seen for node, boot, seen in found}


def unpack(data: bytes) -> Runs:
    """The runs [n, 2] of a boot."""
    return np.frombuffer(data, "<i8").astype(np.int64).reshape(-1, 2)


def pack(runs: Runs) -> bytes:
    """Runs [n, 2] as little-endian i64."""
    return runs.astype("<i8").tobytes()


def holds(runs: Runs, number: int) -> bool:
    """Whether a number lies in a run."""
    index = int(np.searchsorted(runs[:, 0], number, side="right")) - 1
    return index >= 0 and number <= int(runs[index, 1])


def add(runs: Runs, numbers: Iterable[int]) -> Runs:
    """The runs with the numbers in them; at most `MOST_RUNS`, the lowest gaps closed."""
    single = np.array(sorted(numbers), np.int64)
    every = np.concatenate([runs, np.stack([single, single], axis=1)])
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = np.maximum.accumulate(every[:, 1])
    begins = np.flatnonzero(np.r_[True, every[1:, 0] > ends[:-1] + 1])
    merged = np.stack([every[begins, 0], ends[np.r_[begins[1:] - 1, len(every) - 1]]], axis=1)
    if len(merged) > MOST_RUNS:
        kept = merged[-MOST_RUNS:].copy()
        kept[0, 0] = merged[0, 0]
        return kept
    return merged
