"""The spool of records that the hub has not confirmed: one SQLite file, nothing else.

A record leaves on the hub's receipt. `put` returns after the record is on disk (WAL,
synchronous=FULL), so a kill or a power cut loses none. The spool is bounded by bytes, number and
age, and spares the last of the disk. What goes first: per-token arrays, oldest record first; then
whole records, oldest first; their counts never, they are summed (`SUMMED`) and told by the
heartbeat. When the disk is full a record waits in memory (at most `MEMORY_LIMIT`) and is written
as soon as there is room.
"""

import shutil
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fleet.errors import OutputError, ProtocolError
from fleet.ids import BootId
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import GenerationRecord

MEMORY_LIMIT = 64
SUMMED = (
    "tokens",
    "prefix",
    "local",
    "verified",
    "corrected",
    "unverified",
    "wasted",
    "forwards",
    "round_trips",
    "bytes_up",
    "bytes_down",
)
CLOCK_IS_SET = 1_767_225_600.0  # 2026: a clock that shows less was never set
_ARRAYS = {"scores": b"", "decisions": b"", "confidences": b"", "unseen": None}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    boot_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    payload BLOB NOT NULL,
    has_arrays INTEGER NOT NULL,
    stored_at REAL NOT NULL DEFAULT 0,
    UNIQUE (boot_id, sequence)
);
CREATE INDEX IF NOT EXISTS record_with_arrays ON record (id) WHERE has_arrays;
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the spool may hold."""

    max_bytes: int
    max_records: int
    max_age_s: float = 30 * 86_400.0
    reserve_bytes: int = 0  # of the disk, below which no arrays are written


@dataclass(frozen=True, slots=True)
class Spool:
    """How the spool stands."""

    records: int  # that wait for a receipt, in memory or on disk
    lost: int  # records dropped unconfirmed, for want of room
    stripped: int  # records that lost their per-token arrays, for want of room
    sums: dict[str, int] = field(default_factory=dict)  # `SUMMED` fields of the lost records


@dataclass(frozen=True, slots=True)
class Spooled:
    """One record that waits for its receipt."""

    boot_id: BootId
    sequence: int
    payload: bytes


class Outbox:
    """The spool of one state folder; used from one thread at a time.

    Closing waits for a call that runs: one whose waiter was cancelled goes on in its thread.
    """

    def __init__(
        self,
        path: Path,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.time,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        """Opens the spool, or makes it.

        Raises:
            OutputError: The file cannot be opened or is no spool.
        """
        self._path = path
        self._limits = limits
        self._clock = clock
        self._free_bytes = free_bytes
        self._memory: deque[GenerationRecord] = deque()
        self._lost_in_memory: Counter[str] = Counter()  # counts that are not on disk yet
        self._next: dict[str, int] = {}
        self._lock = threading.RLock()
        with self._sentences():
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._add_missing_column()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._db.close()

    def put(self, record: GenerationRecord) -> GenerationRecord:
        """Spools `record` under the next sequence number of its boot, and returns it numbered.

        Raises:
            OutputError: It is not on disk; it waits in memory and `flush` tries again.
        """
        numbered = record.model_copy(update={"sequence": self._take_number(record.boot_id)})
        self._memory.append(numbered)
        if len(self._memory) > MEMORY_LIMIT:
            self._lost_in_memory += _loss(self._memory.popleft())
        self.flush()
        return numbered

    def flush(self) -> None:
        """Writes what waits in memory.

        Raises:
            OutputError: The disk takes nothing; the sentence says what to do.
        """
        while self._memory or self._lost_in_memory:
            with self._sentences(), self._transaction():
                self._count(self._lost_in_memory)
                if self._memory:
                    self._insert(self._memory[0])
                self._make_room()
            self._lost_in_memory.clear()
            if self._memory:
                self._memory.popleft()

    def pending(self, limit: int, skip: frozenset[tuple[str, int]] = frozenset()) -> list[Spooled]:
        """The oldest records that wait for a receipt, without those in `skip`."""
        found: list[Spooled] = []
        with self._sentences(), closing(self._db.cursor()) as cursor:
            for boot, sequence, payload in cursor.execute(
                "SELECT boot_id, sequence, payload FROM record ORDER BY id"
            ):
                if (boot, sequence) not in skip:
                    found.append(Spooled(BootId(boot), sequence, payload))
                if len(found) == limit:
                    break
        return found

    def drop(self, boot: BootId, sequences: list[int]) -> int:
        """Forgets records that the hub has stored; returns how many were there.

        Raises:
            OutputError: The spool cannot be written.
        """
        with self._sentences(), self._transaction():
            return sum(
                self._db.execute(
                    "DELETE FROM record WHERE boot_id = ? AND sequence = ?", (boot, sequence)
                ).rowcount
                for sequence in sequences
            )

    def boots(self) -> list[BootId]:
        """The boots whose records wait for a receipt."""
        with self._sentences():
            rows = self._db.execute("SELECT DISTINCT boot_id FROM record").fetchall()
        return [BootId(boot) for (boot,) in rows]

    def state(self) -> Spool:
        """What waits, and what had to go since the spool was made.

        Raises:
            OutputError: The spool cannot be read.
        """
        with self._sentences():
            (count,) = self._db.execute("SELECT count(*) FROM record").fetchone()
            rows: dict[str, int] = dict(self._db.execute("SELECT name, value FROM counter"))
        counts = Counter(rows) + self._lost_in_memory
        sums = {name: counts[name] for name in SUMMED if counts[name]}
        return Spool(count + len(self._memory), counts["lost"], counts["stripped"], sums)

    # ── Inside a transaction ──────────────────────────────────────────────────────────────

    def _insert(self, record: GenerationRecord) -> None:
        has_arrays = any(getattr(record, name) for name in _ARRAYS)
        if has_arrays and self._free_bytes(self._path.parent) < self._limits.reserve_bytes:
            record, has_arrays = record.model_copy(update=_ARRAYS), False
            self._count(Counter(stripped=1))
        self._db.execute(
            "INSERT INTO record (boot_id, sequence, payload, has_arrays, stored_at)"
            " VALUES (?, ?, ?, ?, ?)",
            (record.boot_id, record.sequence, encode(record), has_arrays, self._clock()),
        )

    def _make_room(self) -> None:
        """Brings the spool within its limits: too old, then arrays of the oldest, then the oldest.

        A record that was stored before the clock was set counts as stored now.
        """
        now = self._clock()
        if now >= CLOCK_IS_SET:
            self._db.execute(
                "UPDATE record SET stored_at = ? WHERE stored_at < ?", (now, CLOCK_IS_SET)
            )
            oldest = now - self._limits.max_age_s
            while self._lose("SELECT min(id) FROM record WHERE stored_at < ?", oldest):
                pass
        while self._is_over():
            if not self._strip_oldest():
                self._lose("SELECT min(id) FROM record")

    def _lose(self, query: str, *values: float) -> bool:
        """Drops the record whose id the query gives, but not its counts; whether there was one."""
        (found,) = self._db.execute(query, values).fetchone()
        if found is None:
            return False
        where = "WHERE id = ?"
        (payload,) = self._db.execute(f"SELECT payload FROM record {where}", (found,)).fetchone()  # noqa: S608
        self._db.execute(f"DELETE FROM record {where}", (found,))  # noqa: S608
        self._count(_loss(_record(payload)))
        return True

    def _is_over(self) -> bool:
        count, size = self._db.execute(
            "SELECT count(*), coalesce(sum(length(payload)), 0) FROM record"
        ).fetchone()
        return bool(
            count > 1 and (count > self._limits.max_records or size > self._limits.max_bytes)
        )

    def _strip_oldest(self) -> bool:
        """Drops the arrays of the oldest record that has some, where that can help."""
        (count,) = self._db.execute("SELECT count(*) FROM record").fetchone()
        row = self._db.execute(
            "SELECT id, payload FROM record WHERE has_arrays ORDER BY id LIMIT 1"
        ).fetchone()
        if row is None or count > self._limits.max_records:
            return False
        self._db.execute(
            "UPDATE record SET payload = ?, has_arrays = 0 WHERE id = ?", (_strip(row[1]), row[0])
        )
        self._count(Counter(stripped=1))
        return True

    def _count(self, counts: Counter[str]) -> None:
        self._db.executemany(
            "INSERT INTO counter VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            counts.items(),
        )

    def _add_missing_column(self) -> None:
        """A spool of an earlier release has no times; its records count as stored now."""
        columns = {row[1] for row in self._db.execute("PRAGMA table_info(record)")}
        if "stored_at" not in columns:
            self._db.execute("ALTER TABLE record ADD COLUMN stored_at REAL NOT NULL DEFAULT 0")

    # ── Beside it ─────────────────────────────────────────────────────────────────────────

    def _take_number(self, boot: BootId) -> int:
        """Numbers a boot's records from 1; a boot id is made anew at each start."""
        number = self._next.get(boot, 0) + 1
        self._next[boot] = number
        return number

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turns SQLite's errors into ours."""
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            raise OutputError(
                f"the outbox {self._path} cannot be written ({error}): free some space or check"
                " the rights of the state folder; pictures are made all the same"
            ) from error


def _record(payload: bytes) -> GenerationRecord:
    record = decode(payload)
    if not isinstance(record, GenerationRecord):
        raise ProtocolError("the outbox holds a message that is no record")
    return record


def _strip(payload: bytes) -> bytes:
    """A record without its per-token arrays."""
    return encode(_record(payload).model_copy(update=_ARRAYS))


def _loss(record: GenerationRecord) -> Counter[str]:
    """What is counted of a record that goes unconfirmed."""
    return Counter({"lost": 1, **{name: getattr(record, name) for name in SUMMED}})
