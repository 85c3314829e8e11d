"""The scheduler: deadlines, fair shares, order within a session, bounds."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.engine.scheduler import AdmissionError, Job, Limits, Scheduler
from fleet.ids import NodeId

LIMITS = Limits(
    jobs=100, node_jobs=50, batch_tokens=8, batch_spans=4, quantum=4, aging_s=1000, node_share=1
)


def limits(**changes: float) -> Limits:
    return replace(LIMITS, **changes)  # type: ignore[arg-type]  # counts are whole


def job(
    name: str,
    *,
    node: str = "a",
    session: str | None = None,
    arrived: float = 0,
    deadline: float = 100,
    tokens: int = 1,
    forwards: int = 1,
) -> Job[str]:
    return Job(session or name, NodeId(node), arrived, deadline, tokens, name, forwards)


def names(batch: list[Job[str]]) -> list[str]:
    return [each.work for each in batch]


def test_the_earliest_deadline_goes_first() -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    for name, deadline in (("late", 3.0), ("soon", 1.0), ("mid", 2.0)):
        scheduler.submit(job(name, deadline=deadline))

    batch = scheduler.next_batch(0)

    assert names(batch) == ["soon", "mid", "late"]
    assert len(scheduler) == 0


def test_a_batch_stops_at_its_tokens_and_the_rest_waits() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(batch_tokens=5, quantum=100))
    for index in range(3):
        scheduler.submit(job(f"j{index}", deadline=index, tokens=2))

    batches = [names(scheduler.next_batch(0)), names(scheduler.next_batch(0))]

    assert batches == [["j0", "j1"], ["j2"]]


def test_a_job_larger_than_a_batch_runs_alone() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(batch_tokens=5))
    scheduler.submit(job("huge", tokens=50))
    scheduler.submit(job("small", deadline=200))

    assert names(scheduler.next_batch(0)) == ["huge"]
    assert names(scheduler.next_batch(0)) == ["small"]


def test_jobs_of_one_session_run_in_their_order_one_a_batch() -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    scheduler.submit(job("first", session="s", deadline=9))
    scheduler.submit(job("second", session="s", deadline=1))

    assert names(scheduler.next_batch(0)) == ["first"]
    assert names(scheduler.next_batch(0)) == ["second"]


def test_the_jobs_of_a_held_session_stay() -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    for name in ("one", "other"):
        scheduler.submit(job(name))

    assert names(scheduler.next_batch(0, {"one"})) == ["other"]
    assert len(scheduler) == 1
    assert names(scheduler.next_batch(0)) == ["one"]


def test_half_a_forward_is_half_of_its_tokens_or_of_its_spans() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(batch_tokens=20, batch_spans=4))
    scheduler.submit(job("a", tokens=3))
    assert not scheduler.half_fills(())
    scheduler.submit(job("b", tokens=3))
    assert scheduler.half_fills(())  # two of four spans
    assert not scheduler.half_fills({"b"})
    scheduler.submit(job("c", tokens=10))
    assert scheduler.half_fills({"a", "b"})  # ten of twenty tokens


def test_the_next_step_of_admitted_work_goes_before_later_jobs_of_its_session() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=1))
    scheduler.submit(job("verify", session="s"))

    scheduler.resume(job("prefix", session="s"))

    assert names(scheduler.next_batch(0)) == ["prefix"]


def test_a_node_with_a_thousand_jobs_waits_for_itself_only() -> None:
    scheduler: Scheduler[str] = Scheduler(
        limits(jobs=2000, node_jobs=1000, batch_tokens=8, batch_spans=8)
    )
    for index in range(1000):
        scheduler.submit(job(f"noisy{index}", node="noisy", deadline=0))
    scheduler.next_batch(0)
    scheduler.submit(job("quiet", node="quiet", deadline=100))

    batches = [names(scheduler.next_batch(0)) for _ in range(2)]

    assert "quiet" in batches[0] + batches[1]


def test_in_company_a_node_takes_no_more_than_a_quantum_of_a_forward_and_alone_all_of_it() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=2000, node_jobs=1000, batch_spans=8))
    for index in range(100):
        scheduler.submit(job(f"noisy{index}", node="noisy"))

    alone = scheduler.next_batch(0)
    scheduler.observe(8, 0.01)
    scheduler.submit(job("quiet", node="quiet"))
    together = []
    for now in (0.1, 0.2):
        together.append(Counter(each.node for each in scheduler.next_batch(now)))
        scheduler.observe(5, 0.01)
    again = scheduler.next_batch(60)

    assert len(alone) == 8
    assert [batch[NodeId("noisy")] for batch in together] == [4, 4]
    assert len(again) == 8


def test_in_company_a_node_that_had_its_share_pauses_and_alone_it_does_not() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(node_share=0.1, node_jobs=100))
    for index in range(20):
        scheduler.submit(job(f"noisy{index}", node="noisy"))
    for now in (0.0, 0.3):
        assert scheduler.next_batch(now)
        scheduler.observe(4, 0.3)
    for index in range(9):
        scheduler.submit(job(f"q{index}", node=f"quiet{index}"))
    batches = []
    for now in (0.6, 0.7, 0.8):
        batches.append(scheduler.next_batch(now))
        scheduler.observe(4, 0.1)

    assert all(each.node != "noisy" for batch in batches for each in batch)
    assert scheduler.next_batch(0.9) == []
    assert 0.1 < (scheduler.pause_s or 0) < 3
    assert names(scheduler.next_batch(0.9 + (scheduler.pause_s or 0)))[0] == "noisy8"


def test_a_job_that_waited_long_goes_before_all_that_came_later() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(aging_s=2, batch_spans=1))
    scheduler.submit(job("patient", arrived=0, deadline=60))
    ran = []
    for now in range(5):
        scheduler.submit(job(f"urgent{now}", arrived=now, deadline=now + 0.5))
        ran += names(scheduler.next_batch(0))

    assert ran == ["urgent0", "urgent1", "patient", "urgent2", "urgent3"]


def test_waiting_nodes_get_equal_tokens_up_to_the_quantum() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=2000, node_jobs=1000))
    for index in range(120):
        for node, deadline in (("a", 0.0), ("b", 50.0), ("c", 99.0)):
            scheduler.submit(job(f"{node}{index}", node=node, deadline=deadline))

    served = Counter(each.node for _ in range(30) for each in scheduler.next_batch(0))

    assert max(served.values()) - min(served.values()) <= 4 + 1


def test_a_node_that_comes_back_does_not_claim_the_time_it_was_away() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(jobs=2000, node_jobs=1000))
    for index in range(200):
        scheduler.submit(job(f"a{index}", node="a", deadline=5))
    for _ in range(20):
        scheduler.next_batch(0)
    for index in range(100):
        scheduler.submit(job(f"b{index}", node="b", deadline=5))

    served = Counter(each.node for _ in range(10) for each in scheduler.next_batch(0))

    assert served[NodeId("a")] >= 15


def seasoned(**changes: float) -> Scheduler[str]:
    """A scheduler that has seen forwards of 0.1 s and 0.01 s a token."""
    scheduler: Scheduler[str] = Scheduler(limits(**changes))
    for tokens in (1, 8) * 20:
        scheduler.observe(tokens, 0.1 + 0.01 * tokens)
    return scheduler


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    scheduler = seasoned(jobs=2)
    scheduler.submit(job("a", tokens=8))
    scheduler.submit(job("b", tokens=8))

    with pytest.raises(AdmissionError, match="hub's queue") as refusal:
        scheduler.submit(job("c"))

    assert refusal.value.retry_after_s == pytest.approx(2 * 0.1 + 16 * 0.01, rel=0.05)


def test_a_job_that_would_be_late_is_refused_with_the_time_it_lacks() -> None:
    scheduler = seasoned(quantum=100)
    for index in range(10):
        scheduler.submit(job(f"a{index}", tokens=8))

    with pytest.raises(AdmissionError, match="would be late") as refusal:
        scheduler.submit(job("late", arrived=50, deadline=51))
    scheduler.submit(job("early", arrived=50, deadline=52.1))

    assert refusal.value.retry_after_s == pytest.approx(11 * 0.1 + 81 * 0.01 - 1, rel=0.05)


def test_a_request_of_many_forwards_is_held_against_its_deadline_as_a_whole() -> None:
    scheduler = seasoned()
    scheduler.submit(job("other", node="b"))

    with pytest.raises(AdmissionError, match="would be late"):
        scheduler.submit(job("opening", forwards=20, arrived=0, deadline=2))
    scheduler.submit(job("opening", forwards=20, arrived=0, deadline=3.5))


def test_an_idle_engine_takes_what_it_forecasts_to_be_late() -> None:
    scheduler = seasoned()

    scheduler.submit(job("a", arrived=0, deadline=0.01))

    assert names(scheduler.next_batch(0)) == ["a"]


def test_forwards_on_their_way_count_until_they_have_ended_or_needed_none() -> None:
    scheduler = seasoned()
    newest = job("newest", tokens=8)
    alone = scheduler.predict(newest)
    for name in "abc":
        scheduler.submit(job(name, tokens=8))
        scheduler.next_batch(0)
    behind = [scheduler.predict(newest)]
    scheduler.withdraw()
    behind.append(scheduler.predict(newest))
    scheduler.observe(8, 0.1 + 0.01 * 8)
    behind.append(scheduler.predict(newest))

    waits = [seconds - alone for seconds in behind]
    assert waits == pytest.approx([3 * 0.18, 2 * 0.18, 0.18], rel=0.05)


def test_a_flood_of_one_node_hardly_moves_the_forecast_of_another() -> None:
    scheduler = seasoned(jobs=2000, node_jobs=1000)
    quiet = job("quiet", node="quiet")
    before = scheduler.predict(quiet)
    for index in range(1000):
        scheduler.submit(job(f"noisy{index}", node="noisy", deadline=1e9))

    assert scheduler.predict(quiet) == pytest.approx(before + 0.01 * (1 + 4), rel=0.05)


def test_one_node_fills_only_its_own_part_of_the_queue() -> None:
    scheduler: Scheduler[str] = Scheduler(limits(node_jobs=2))
    scheduler.submit(job("a1", node="a"))
    scheduler.submit(job("a2", node="a"))

    with pytest.raises(AdmissionError, match="node's"):
        scheduler.submit(job("a3", node="a"))

    scheduler.submit(job("b1", node="b"))
    assert len(scheduler) == 3


def test_a_cancelled_session_leaves_nothing_behind() -> None:
    scheduler: Scheduler[str] = Scheduler(limits())
    scheduler.submit(job("one", session="s", tokens=3))
    scheduler.submit(job("two", session="s", tokens=3))

    cancelled = scheduler.cancel("s")

    assert cancelled == ["one", "two"]
    assert (len(scheduler), scheduler.waiting_tokens, scheduler.next_batch(0)) == (0, 0, [])


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
        batch = scheduler.next_batch(0)
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
