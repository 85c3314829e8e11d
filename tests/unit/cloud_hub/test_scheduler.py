"""The scheduler: deadlines, fair shares, order within a session, bounds."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.engine.scheduler import Job, Limits, QueueFullError, Scheduler
from fleet.ids import NodeId


def limits(**changes: int) -> Limits:
    values = {"jobs": 100, "node_jobs": 50, "batch_tokens": 8, "batch_spans": 4, "quantum": 4}
    return Limits(**(values | changes))


def job(
    name: str, *, node: str = "a", session: str | None = None, deadline: float = 1, tokens: int = 1
) -> Job[str]:
    return Job(session or name, NodeId(node), deadline, tokens, name)


def names(batch: list[Job[str]]) -> list[str]:
    return [each.work for each in batch]


def test_the_earliest_deadline_goes_first() -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    for name, deadline in (("late", 3.0), ("soon", 1.0), ("mid", 2.0)):
        scheduler.submit(job(name, deadline=deadline))

    batch = scheduler.next_batch()

    assert names(batch) == ["soon", "mid", "late"]
    assert len(scheduler) == 0


def test_a_batch_stops_at_its_tokens_and_the_rest_waits() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(batch_tokens=5, quantum=100))
    for index in range(3):
        scheduler.submit(job(f"j{index}", deadline=index, tokens=2))

    batches = [names(scheduler.next_batch()), names(scheduler.next_batch())]

    assert batches == [["j0", "j1"], ["j2"]]


def test_a_job_larger_than_a_batch_runs_alone() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(batch_tokens=5))
    scheduler.submit(job("huge", tokens=50))
    scheduler.submit(job("small", deadline=2))

    assert names(scheduler.next_batch()) == ["huge"]
    assert names(scheduler.next_batch()) == ["small"]


def test_jobs_of_one_session_run_in_their_order_one_a_batch() -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    scheduler.submit(job("first", session="s", deadline=9))
    scheduler.submit(job("second", session="s", deadline=1))

    assert names(scheduler.next_batch()) == ["first"]
    assert names(scheduler.next_batch()) == ["second"]


def test_the_next_step_of_admitted_work_goes_before_later_jobs_of_its_session() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=1))
    scheduler.submit(job("verify", session="s"))

    scheduler.resume(job("prefix", session="s"))

    assert names(scheduler.next_batch()) == ["prefix"]


def test_a_node_with_a_thousand_jobs_waits_for_itself_only() -> None:
    scheduler: Scheduler[str] = Scheduler(
        limits(jobs=2000, node_jobs=1000, batch_tokens=8, batch_spans=8)
    )
    for index in range(1000):
        scheduler.submit(job(f"noisy{index}", node="noisy", deadline=0))
    scheduler.next_batch()
    scheduler.submit(job("quiet", node="quiet", deadline=100))

    batches = [names(scheduler.next_batch()) for _ in range(2)]

    assert "quiet" in batches[0] + batches[1]


def test_waiting_nodes_get_equal_tokens_up_to_the_quantum() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=2000, node_jobs=1000))
    for index in range(120):
        for node, deadline in (("a", 0.0), ("b", 50.0), ("c", 99.0)):
            scheduler.submit(job(f"{node}{index}", node=node, deadline=deadline))

    served = Counter(each.node for _ in range(30) for each in scheduler.next_batch())

    assert max(served.values()) - min(served.values()) <= 4 + 1


def test_a_node_that_comes_back_does_not_claim_the_time_it_was_away() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=2000, node_jobs=1000))
    for index in range(200):
        scheduler.submit(job(f"a{index}", node="a", deadline=5))
    for _ in range(20):
        scheduler.next_batch()
    for index in range(100):
        scheduler.submit(job(f"b{index}", node="b", deadline=5))

    served = Counter(each.node for _ in range(10) for each in scheduler.next_batch())

    assert served[NodeId("a")] >= 15


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=2))
    scheduler.observe(tokens=100, seconds=1.0)
    scheduler.submit(job("a", tokens=50))
    scheduler.submit(job("b", tokens=50))

    with pytest.raises(QueueFullError) as refusal:
        scheduler.submit(job("c"))

    assert refusal.value.retry_after_s == pytest.approx(1.0)


def test_one_node_fills_only_its_own_part_of_the_queue() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(node_jobs=2))
    scheduler.submit(job("a1", node="a"))
    scheduler.submit(job("a2", node="a"))

    with pytest.raises(QueueFullError, match="node's"):
        scheduler.submit(job("a3", node="a"))

    scheduler.submit(job("b1", node="b"))
    assert len(scheduler) == 3


def test_a_cancelled_session_leaves_nothing_behind() -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    scheduler.submit(job("one", session="s", tokens=3))
    scheduler.submit(job("two", session="s", tokens=3))

    cancelled = scheduler.cancel("s")

    assert cancelled == ["one", "two"]
    assert (len(scheduler), scheduler.waiting_tokens, scheduler.next_batch()) == (0, 0, [])


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 5),
            st.floats(0, 10, allow_nan=False),
            st.integers(1, 12),
        ),
        max_size=60,
    )
)
def test_every_job_runs_once_and_no_batch_is_over_its_bounds(
    asked: list[tuple[str, int, float, int]],
) -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    for index, (node, session, deadline, tokens) in enumerate(asked):
        name = f"{node}{session}"
        scheduler.submit(job(str(index), node=node, session=name, deadline=deadline, tokens=tokens))

    ran = []
    while len(scheduler):
        batch = scheduler.next_batch()
        assert batch
        assert len(batch) == 1 or sum(each.tokens for each in batch) <= 8
        assert len(batch) <= 4
        assert len({each.session for each in batch}) == len(batch)
        ran += batch

    assert sorted(int(each.work) for each in ran) == list(range(len(asked)))
    by_session: dict[object, list[int]] = {}
    for each in ran:
        by_session.setdefault(each.session, []).append(int(each.work))
    assert all(order == sorted(order) for order in by_session.values())
    assert scheduler.waiting_tokens == 0
