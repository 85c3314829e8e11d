"""The spool loses nothing that it took, and says what it had to leave out."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge_agent.outbox import MEMORY_LIMIT, Limits, Outbox
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


class OutboxMachine(RuleBasedStateMachine):
    """The spool against a dictionary: puts, receipts, restarts, a disk that fills and empties."""

    @initialize(folder=st.just(None))
    def begin(self, folder: None) -> None:
        self.connection_name = ":memory:"
        self.model: dict[tuple[str, int], int] = {}
        self.boot = 0
        self.value = 0
        self.outbox = Outbox(Path(":memory:"), ROOMY)

    @rule()
    def put(self) -> None:
        self.value += 1
        record = self.outbox.put(toy_record(boot=f"b{self.boot}", local=self.value))
        self.model[(record.boot_id, record.sequence)] = self.value

    @rule(boot=st.integers(0, 3), sequences=st.lists(st.integers(0, 12), max_size=4))
    def receipt(self, boot: int, sequences: list[int]) -> None:
        self.outbox.drop(BootId(f"b{boot}"), sequences)
        for sequence in sequences:
            self.model.pop((f"b{boot}", sequence), None)

    @rule()
    def restart(self) -> None:
        """A start has a new boot id, so its numbers begin anew."""
        self.boot += 1
        self.outbox._next.clear()

    @rule()
    def full_disk(self) -> None:
        self.value += 1
        self.outbox._db.execute("PRAGMA query_only = ON")
        with pytest.raises(OutputError):
            self.outbox.put(toy_record(boot=f"b{self.boot}", local=self.value))
        self.outbox._db.execute("PRAGMA query_only = OFF")
        self.outbox.flush()
        self.model[(f"b{self.boot}", self.outbox._next[f"b{self.boot}"])] = self.value

    @invariant()
    def holds_what_was_put_and_not_confirmed(self) -> None:
        if not hasattr(self, "outbox"):
            return
        found = {
            (spooled.boot_id, spooled.sequence): decode(spooled.payload).local
            for spooled in self.outbox.pending(1000)
        }
        assert self.model == found

    def teardown(self) -> None:
        if hasattr(self, "outbox"):
            self.outbox.__exit__(None, None, None)


OutboxMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
test_the_spool_is_a_dictionary = OutboxMachine.TestCase


def test_sqlite_is_new_enough_for_upserts() -> None:
    assert sqlite3.sqlite_version_info >= (3, 24)
