"""The spool loses nothing that it took, and says what it had to leave out."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge_agent.outbox import CLOCK_IS_SET, MEMORY_LIMIT, Limits, Outbox
from fleet.errors import OutputError
from fleet.ids import BootId
from fleet.protocol.codec import decode
from tests.unit.edge_agent.toy_record import toy_record

ROOMY = Limits(max_bytes=1 << 20, max_records=100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.sqlite"


@pytest.fixture
def outbox(path: Path) -> Iterator[Outbox]:
    with Outbox(path, ROOMY) as outbox:
        yield outbox


def test_records_are_numbered_from_one_within_a_boot(outbox: Outbox) -> None:
    numbers = [outbox.put(toy_record(boot=boot)).sequence for boot in ("a", "a", "b", "a")]

    assert [1, 2, 1, 3] == numbers


def test_the_payload_carries_the_number(outbox: Outbox) -> None:
    outbox.put(toy_record())
    outbox.put(toy_record())

    assert [1, 2] == [decode(spooled.payload).sequence for spooled in outbox.pending(9)]


def test_a_record_stays_until_its_receipt(path: Path) -> None:
    with Outbox(path, ROOMY) as outbox:
        outbox.put(toy_record())
    with Outbox(path, ROOMY) as outbox:
        assert 1 == outbox.state().records
        assert 1 == outbox.drop(BootId("boot"), [1])
        assert 0 == outbox.state().records


def test_closing_waits_for_a_call_that_still_runs(path: Path) -> None:
    is_writing, may_go_on = threading.Event(), threading.Event()

    def free_bytes(_: Path) -> int:
        is_writing.set()
        may_go_on.wait(30)
        return 1 << 40

    with ThreadPoolExecutor(2) as pool:
        with Outbox(path, ROOMY, free_bytes=free_bytes) as outbox:
            writing = pool.submit(outbox.put, toy_record(arrays=8))
            assert is_writing.wait(30)
            pool.submit(may_go_on.wait, 0.2).add_done_callback(lambda _: may_go_on.set())
        assert may_go_on.is_set()
        writing.result(30)
    with Outbox(path, ROOMY) as outbox:
        assert 1 == outbox.state().records


def test_a_receipt_for_something_else_drops_nothing(outbox: Outbox) -> None:
    outbox.put(toy_record())

    assert 0 == outbox.drop(BootId("other"), [1])
    assert 0 == outbox.drop(BootId("boot"), [2, 77])
    assert 1 == outbox.state().records


def test_pending_gives_the_oldest_first_and_leaves_out_what_it_is_told(outbox: Outbox) -> None:
    for _ in range(5):
        outbox.put(toy_record())

    found = outbox.pending(2, frozenset({("boot", 1), ("boot", 3)}))

    assert [2, 4] == [spooled.sequence for spooled in found]


def test_boots_are_those_with_records_left(outbox: Outbox) -> None:
    outbox.put(toy_record(boot="a"))
    outbox.put(toy_record(boot="b"))
    outbox.drop(BootId("a"), [1])

    assert ["b"] == outbox.boots()


def test_too_many_bytes_cost_the_arrays_of_the_oldest_first(path: Path) -> None:
    with Outbox(path, Limits(max_bytes=7_000, max_records=100)) as outbox:
        for _ in range(6):
            outbox.put(toy_record(arrays=1000))
        records = [decode(spooled.payload) for spooled in outbox.pending(9)]

        assert 6 == len(records)
        assert records[0].scores == b""
        assert records[-1].scores != b""
        assert 7 == records[0].local
        assert outbox.state().stripped >= 1
        assert 0 == outbox.state().lost


def test_when_no_arrays_are_left_the_oldest_records_go_and_are_counted(path: Path) -> None:
    with Outbox(path, Limits(max_bytes=1 << 20, max_records=3)) as outbox:
        for _ in range(5):
            outbox.put(toy_record(arrays=10))

        assert [3, 4, 5] == [spooled.sequence for spooled in outbox.pending(9)]
        assert 2 == outbox.state().lost


def test_a_record_larger_than_the_spool_stays_alone(path: Path) -> None:
    with Outbox(path, Limits(max_bytes=1, max_records=10)) as outbox:
        outbox.put(toy_record(arrays=100))
        outbox.put(toy_record(arrays=100))

        assert [2] == [spooled.sequence for spooled in outbox.pending(9)]


def test_a_full_disk_is_a_sentence_and_the_record_is_written_when_there_is_room(
    path: Path,
) -> None:
    with Outbox(path, ROOMY) as outbox:
        outbox.put(toy_record())
        pages = outbox._db.execute("PRAGMA page_count").fetchone()[0]
        outbox._db.execute(f"PRAGMA max_page_count = {pages}")

        with pytest.raises(OutputError, match="free some space"):
            _fill(outbox)
        waiting = outbox.state().records
        outbox._db.execute("PRAGMA max_page_count = 100000")
        outbox.flush()

        assert waiting == outbox.state().records == len(outbox.pending(100))
        numbers = [spooled.sequence for spooled in outbox.pending(100)]
        assert list(range(1, waiting + 1)) == numbers


def _fill(outbox: Outbox) -> None:
    for _ in range(40):
        outbox.put(toy_record(arrays=2000))


def test_memory_is_bounded_while_the_disk_is_full(path: Path) -> None:
    with Outbox(path, ROOMY) as outbox:
        outbox._db.execute("PRAGMA query_only = ON")
        for _ in range(MEMORY_LIMIT + 10):
            with pytest.raises(OutputError):
                outbox.put(toy_record())

        assert MEMORY_LIMIT == outbox.state().records


def test_a_file_that_is_no_spool_is_refused_with_its_name(path: Path) -> None:
    path.write_bytes(b"not a database, for sure" * 100)

    with pytest.raises(OutputError, match=r"outbox\.sqlite"):
        Outbox(path, ROOMY)


def test_every_commit_reaches_the_disk(outbox: Outbox) -> None:
    assert ("wal",) == outbox._db.execute("PRAGMA journal_mode").fetchone()
    assert (2,) == outbox._db.execute("PRAGMA synchronous").fetchone()  # FULL


def test_what_is_too_old_goes_and_its_counts_stay(path: Path) -> None:
    now = [CLOCK_IS_SET + 10]
    with Outbox(path, Limits(1 << 20, 100, max_age_s=50), clock=lambda: now[0]) as outbox:
        outbox.put(toy_record(local=3))
        now[0] += 60
        outbox.put(toy_record(local=4))
        state = outbox.state()

        assert [2] == [spooled.sequence for spooled in outbox.pending(9)]
        assert (1, 3, 24) == (state.lost, state.sums["local"], state.sums["tokens"])


def test_a_clock_that_is_set_late_makes_no_record_old(path: Path) -> None:
    now = [12.0]  # a device without a clock of its own wakes up in 1970
    with Outbox(path, Limits(1 << 20, 100, max_age_s=50), clock=lambda: now[0]) as outbox:
        outbox.put(toy_record())
        now[0] = CLOCK_IS_SET + 5
        outbox.put(toy_record())
        now[0] += 40
        outbox.put(toy_record())

        assert 0 == outbox.state().lost


def test_the_last_of_the_disk_is_not_for_arrays(path: Path) -> None:
    free = [1_000]
    limits = Limits(1 << 20, 100, reserve_bytes=500)
    with Outbox(path, limits, free_bytes=lambda _: free[0]) as outbox:
        outbox.put(toy_record(arrays=10))
        free[0] = 499
        outbox.put(toy_record(arrays=10))
        records = [decode(spooled.payload) for spooled in outbox.pending(9)]

        assert [10, 0] == [len(record.scores) for record in records]
        assert (0, 1) == (outbox.state().lost, outbox.state().stripped)


def test_a_spool_of_an_earlier_release_is_read_and_ages_from_now(path: Path) -> None:
    with Outbox(path, ROOMY) as outbox:
        outbox.put(toy_record())
        outbox._db.execute("ALTER TABLE record DROP COLUMN stored_at")

    with Outbox(path, ROOMY) as outbox:
        outbox.put(toy_record(boot="later"))

        assert (2, 0) == (outbox.state().records, outbox.state().lost)


def test_records_lost_from_memory_are_counted_once_there_is_a_disk(path: Path) -> None:
    with Outbox(path, ROOMY) as outbox:
        outbox._db.execute("PRAGMA query_only = ON")
        for _ in range(MEMORY_LIMIT + 3):
            with pytest.raises(OutputError):
                outbox.put(toy_record(local=2))
        before = outbox.state()
        outbox._db.execute("PRAGMA query_only = OFF")
        outbox.flush()
        after = outbox.state()

    with Outbox(path, ROOMY) as outbox:
        for state in (before, after, outbox.state()):
            assert (MEMORY_LIMIT, 3, 6) == (state.records, state.lost, state.sums["local"])


@dataclass
class Kept:
    """What the model knows of a record in the spool."""

    local: int
    stored_at: float
    has_arrays: bool


class OutboxMachine(RuleBasedStateMachine):
    """The spool against a list: puts, receipts, restarts, time, bounds, a disk that fills."""

    @initialize(records=st.integers(1, 6), age_s=st.sampled_from([20.0, 1e9]))
    def begin(self, records: int, age_s: float) -> None:
        self.folder = TemporaryDirectory()
        self.limits = Limits(1 << 20, records, age_s, reserve_bytes=100)
        self.model: dict[tuple[str, int], Kept] = {}
        self.boot, self.value, self.lost, self.lost_local, self.stripped = 0, 0, 0, 0, 0
        self.now, self.free = CLOCK_IS_SET + 1, 1000
        self.open()

    def open(self) -> None:
        self.outbox = Outbox(
            Path(self.folder.name) / "outbox.sqlite",
            self.limits,
            clock=lambda: self.now,
            free_bytes=lambda _: self.free,
        )

    def note(self, boot: str, sequence: int, arrays: bool) -> None:
        """The rules as they are written: too old first, then more than may be, oldest first."""
        has_arrays = arrays and self.free >= self.limits.reserve_bytes
        self.stripped += arrays and not has_arrays
        self.model[boot, sequence] = Kept(self.value, self.now, has_arrays)
        for key, kept in list(self.model.items()):
            if kept.stored_at < self.now - self.limits.max_age_s:
                self.lose(key)
        while len(self.model) > self.limits.max_records:
            self.lose(next(iter(self.model)))

    def lose(self, key: tuple[str, int]) -> None:
        self.lost += 1
        self.lost_local += self.model.pop(key).local

    @rule(arrays=st.booleans())
    def put(self, arrays: bool) -> None:
        self.value += 1
        wanted = toy_record(boot=f"b{self.boot}", local=self.value, arrays=9 * arrays)
        record = self.outbox.put(wanted)
        self.note(record.boot_id, record.sequence, arrays)

    @rule(boot=st.integers(0, 3), sequences=st.lists(st.integers(0, 12), max_size=4))
    def receipt(self, boot: int, sequences: list[int]) -> None:
        self.outbox.drop(BootId(f"b{boot}"), sequences)
        for sequence in sequences:
            self.model.pop((f"b{boot}", sequence), None)

    @rule(seconds=st.integers(1, 30))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(free=st.sampled_from([50, 1000]))
    def others_use_the_disk(self, free: int) -> None:
        self.free = free

    @rule()
    def restart(self) -> None:
        """A start has a new boot id, so its numbers begin anew."""
        self.boot += 1
        self.outbox.__exit__(None, None, None)
        self.open()

    @rule()
    def full_disk(self) -> None:
        self.value += 1
        boot = f"b{self.boot}"
        self.outbox._db.execute("PRAGMA query_only = ON")
        with pytest.raises(OutputError):
            self.outbox.put(toy_record(boot=boot, local=self.value))
        self.outbox._db.execute("PRAGMA query_only = OFF")
        self.outbox.flush()
        self.note(boot, self.outbox._next[boot], arrays=False)

    @invariant()
    def holds_what_was_put_and_not_confirmed_and_counts_the_rest(self) -> None:
        if not hasattr(self, "outbox"):
            return
        records = {
            (spooled.boot_id, spooled.sequence): decode(spooled.payload)
            for spooled in self.outbox.pending(1000)
        }
        state = self.outbox.state()
        expected = {key: (kept.local, kept.has_arrays) for key, kept in self.model.items()}
        assert list(expected) == list(records)
        assert expected == {key: (each.local, bool(each.scores)) for key, each in records.items()}
        assert (len(self.model), self.lost, self.stripped) == (
            state.records,
            state.lost,
            state.stripped,
        )
        assert self.lost_local == state.sums.get("local", 0)

    def teardown(self) -> None:
        if hasattr(self, "outbox"):
            self.outbox.__exit__(None, None, None)
            self.folder.cleanup()


OutboxMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
test_the_spool_is_a_list_with_bounds = OutboxMachine.TestCase


def test_sqlite_is_new_enough_for_upserts() -> None:
    assert sqlite3.sqlite_version_info >= (3, 24)
