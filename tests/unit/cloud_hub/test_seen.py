"""Runs of sequence numbers against a set of them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.store.seen import MOST_RUNS, add, holds, pack, unpack

EMPTY = unpack(b"")


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), max_size=12))
def test_runs_hold_what_was_added_and_nothing_else(batches: list[list[int]]) -> None:
    runs, known = EMPTY, set[int]()
    for batch in batches:
        runs, known = unpack(pack(add(runs, batch))), known | set(batch)

        assert {number for number in range(70) if holds(runs, number)} == known
        assert all(after[0] > before[1] + 1 for before, after in pairwise(runs))


def test_beyond_the_most_runs_the_lowest_gaps_count_as_seen() -> None:
    runs = add(EMPTY, range(0, 4 * MOST_RUNS, 2))

    assert len(runs) == MOST_RUNS
    assert holds(runs, 1)
    assert not holds(runs, 4 * MOST_RUNS - 3)
    assert not holds(runs, 4 * MOST_RUNS)
    assert add(runs, [5]) == runs
