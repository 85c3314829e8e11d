"""The engine on the toy: batching, repeats, losses and reopenings change no token."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Never

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.engine.requests import Answer, Denied, Full, Logits, Opened, Reason
from cloud_hub.engine.runner import Span
from cloud_hub.engine.steps import Reply
from fleet.decoding.residual import Evidence, judge_residual, law_to_send, luck_of
from fleet.decoding.sampling import law, sharpen
from fleet.decoding.verify import Rule
from simulations.world.clock import run_in_virtual_time
from tests.unit.cloud_hub.bench import (
    CAPTION,
    LIMITS,
    Bench,
    BusyError,
    ToyDevice,
    device,
    expected_picture,
    judged,
    key,
    opened,
    values,
)
from tests.unit.cloud_hub.toy import (
    POSITIONS,
    SAMPLING,
    VOCAB,
    backlog,
    cloud_only,
    opening,
    run_of,
    toy_logits,
)


async def test_an_opening_draws_the_prefix_that_the_cloud_alone_would_draw() -> None:
    async with Bench().running() as bench:
        answer = opened(await bench.ask(opening(prefix_tokens=5)))

    assert list(answer.tokens) == cloud_only(CAPTION, 7, 5)
    assert len(answer.confidences) == 5
    assert all(0 < value <= 1 for value in answer.confidences)
    assert answer.cost.forwards == 5


async def test_an_opening_without_prefix_is_one_forward_and_no_tokens() -> None:
    async with Bench().running() as bench:
        answer = opened(await bench.ask(opening(prefix_tokens=0)))

        verdict = judged(await bench.ask(backlog(0, run_of([0]), [True])))

    assert (answer.tokens, answer.cost.forwards) == ((), 1)
    assert verdict.next_token == cloud_only(CAPTION, 7, 2)[verdict.accepted]


async def test_an_opening_can_draw_the_whole_picture() -> None:
    async with Bench().running() as bench:
        answer = opened(await bench.ask(opening(prefix_tokens=POSITIONS)))

    assert list(answer.tokens) == cloud_only(CAPTION, 7)


async def test_verifying_everything_gives_the_cloud_only_picture() -> None:
    async with Bench().running() as bench:
        picture = await device(bench, 1).picture()

    assert picture.tokens.tolist() == cloud_only(CAPTION, 1001)


async def test_right_drafts_stand_and_the_bonus_token_is_the_next_draw() -> None:
    right = cloud_only(CAPTION, 7)
    async with Bench().running() as bench:
        await bench.ask(opening(prefix_tokens=3))
        verdict = judged(await bench.ask(backlog(3, run_of(right[3:8]), [True] * 5)))
        last = judged(await bench.ask(backlog(8, run_of(right[8:]), [True] * 8)))

    assert (verdict.accepted, verdict.next_token, verdict.branch) == (5, right[8], 0)
    assert (last.accepted, last.next_token) == (8, -1)
    assert len(verdict.confidences) == 5


async def test_a_wrong_draft_is_replaced_and_what_follows_falls() -> None:
    right = cloud_only(CAPTION, 7)
    wrong = [right[3], (right[4] + 1) % VOCAB, right[5]]
    async with Bench().running() as bench:
        await bench.ask(opening(prefix_tokens=3))
        verdict = judged(await bench.ask(backlog(3, run_of(wrong), [True] * 3)))
        after = judged(await bench.ask(backlog(5, run_of(right[5:7]), [True] * 2, branch=1)))

    assert (verdict.accepted, verdict.next_token, verdict.branch) == (1, right[4], 1)
    assert len(verdict.confidences) == 2
    assert (after.accepted, after.next_token) == (2, right[7])


@pytest.mark.parametrize("local_share", [0.0, 0.5, 0.9])
async def test_many_sessions_together_give_what_each_gives_alone(local_share: float) -> None:
    async def alone(index: int) -> list[int]:
        async with Bench().running() as bench:
            return values(await device(bench, index, local_share).picture())

    async with Bench(slots=12).running() as bench:
        devices = [device(bench, index, local_share) for index in range(12)]
        together = await asyncio.gather(*(each.picture() for each in devices))

    assert [values(each) for each in together] == [await alone(i) for i in range(12)]
    assert max(len(batch) for batch in bench.toy.batches) > 4


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.sampled_from([0.0, 0.4, 0.8, 1.0]))
def test_the_picture_does_not_depend_on_how_it_was_cut_into_backlogs(
    cuts: int, window: int, local_share: float
) -> None:
    async def draw_picture() -> tuple[list[int], list[int]]:
        async with Bench().running() as bench:
            one = replace(device(bench, 3, local_share, cuts), window=window)
            return values(await one.picture()), expected_picture(one)

    drawn, expected = asyncio.run(draw_picture())

    assert drawn == expected


async def test_a_feature_reaches_the_model_and_only_if_it_is_used() -> None:
    local = run_of([5, 6, 7], [True, True, False])
    verdicts = []
    for use in (True, False):
        async with Bench().running() as bench:
            await bench.ask(replace(opening(), use_features=use))
            await bench.ask(backlog(3, local, [False, False, False]))
            verdicts.append(bench.toy.features[bench.toy.batches[-1][0].slot, 3:6].any(axis=1))

    assert [rows.tolist() for rows in verdicts] == [[True, True, False]] * 2


async def test_a_repeat_is_answered_as_before_without_a_forward() -> None:
    async with Bench().running() as bench:
        ask = opening(prefix_tokens=3)
        first = [
            await bench.ask(ask),
            await bench.ask(backlog(3, run_of([1]), [True], request_id="v")),
        ]
        forwards = bench.engine.counters.forwards

        again = [
            await bench.ask(ask),
            await bench.ask(backlog(3, run_of([1]), [True], request_id="v")),
        ]

    assert again == first
    assert bench.engine.counters.forwards == forwards
    assert bench.engine.counters.repeated == 2


async def test_a_repeat_of_what_still_waits_is_dropped() -> None:
    bench = Bench()
    replies: list[Answer] = []

    async def reply(answer: Answer) -> None:
        replies.append(answer)

    ask = opening()
    assert bench.engine.submit(ask, reply) is None
    assert bench.engine.submit(ask, reply) is None
    async with bench.running():
        await bench.ask(opening(generation="other"))

    assert len(replies) == 1


async def test_the_same_opening_under_a_new_id_goes_on_where_the_first_one_is() -> None:
    bench = Bench()
    replies: list[tuple[str, Answer]] = []

    def reply_to(name: str) -> Reply:
        async def reply(answer: Answer) -> None:
            replies.append((name, answer))

        return reply

    bench.engine.submit(opening(request_id="a", prefix_tokens=6), reply_to("a"))
    bench.engine.submit(opening(request_id="b", prefix_tokens=6), reply_to("b"))
    bench.engine.submit(opening(request_id="c", prefix_tokens=5), reply_to("c"))
    bench.engine.submit(opening(request_id="d", prefix_tokens=5), reply_to("d"))
    async with bench.running():
        await bench.ask(opening(generation="other", prefix_tokens=9))

    assert [name for name, _ in replies] == ["d"]
    assert list(opened(replies[0][1]).tokens) == cloud_only(CAPTION, 7, 5)
    assert bench.engine.counters.repeated == 2


async def test_an_older_branch_is_stale_and_a_hole_is_a_gap() -> None:
    right = cloud_only(CAPTION, 7)
    async with Bench().running() as bench:
        await bench.ask(opening(prefix_tokens=3))
        await bench.ask(backlog(3, run_of([(right[3] + 1) % VOCAB]), [True]))

        stale = await bench.ask(backlog(4, run_of([1]), [True], branch=0))
        gap = await bench.ask(backlog(7, run_of([1]), [True], branch=1))
        newer = await bench.ask(backlog(4, run_of([1]), [True], branch=2))

    assert stale == Denied(Reason.STALE)
    assert gap == Denied(Reason.GAP, expected=4)
    assert newer == Denied(Reason.UNKNOWN_SESSION)


async def test_requests_in_flight_together_run_in_their_order() -> None:
    right = cloud_only(CAPTION, 7)
    async with Bench().running() as bench:
        answers = await bench.ask_all(
            [opening(prefix_tokens=3)]
            + [backlog(start, run_of([right[start]]), [True]) for start in range(3, 9)]
        )

    assert [judged(answer).accepted for answer in answers[1:]] == [1] * 6


async def test_after_a_correction_the_requests_in_flight_are_stale() -> None:
    right = cloud_only(CAPTION, 7)
    async with Bench().running() as bench:
        await bench.ask(opening(prefix_tokens=3))
        answers = await bench.ask_all(
            [
                backlog(3, run_of([(right[3] + 1) % VOCAB]), [True]),
                backlog(4, run_of([right[4]]), [True]),
            ]
        )

    assert judged(answers[0]).next_token == right[3]
    assert answers[1] == Denied(Reason.STALE)


async def test_a_request_from_an_earlier_start_runs_again_from_there() -> None:
    right = cloud_only(CAPTION, 7)
    async with Bench().running() as bench:
        await bench.ask(opening(prefix_tokens=3))
        await bench.ask(backlog(3, run_of(right[3:9]), [True] * 6))

        from_five = judged(await bench.ask(backlog(5, run_of(right[5:7]), [True] * 2)))
        from_zero = judged(await bench.ask(backlog(0, run_of(right[:4]), [True] * 4)))
        next_one = judged(await bench.ask(backlog(4, run_of(right[4:6]), [True] * 2)))

    assert (from_five.accepted, from_five.next_token) == (2, right[7])
    assert (from_zero.accepted, from_zero.next_token) == (4, right[4])
    assert (next_one.accepted, next_one.next_token) == (2, right[6])


async def test_an_unknown_session_says_so_and_a_foreign_node_has_none() -> None:
    async with Bench().running() as bench:
        await bench.ask(opening(node="n1"))

        foreign = await bench.ask(backlog(3, run_of([1]), [True], node="n2"))

    assert foreign == Denied(Reason.UNKNOWN_SESSION)


@pytest.mark.parametrize("known", range(POSITIONS))
async def test_a_reopened_picture_goes_on_as_if_nothing_had_happened(known: int) -> None:
    async with Bench().running() as bench:
        whole = values(await device(bench, 5, 0.5).picture())
    async with Bench().running() as first:
        cut = device(first, 5, 0.5)
        await cut.open()
        while len(cut.run) < known:
            await cut.advance()
    async with Bench(chunk=3).running() as second:
        cut.bench = second
        await cut.open()
        finished = values(await cut.picture())

    assert finished == whole


async def test_a_history_shorter_than_the_prefix_is_continued() -> None:
    right = cloud_only(CAPTION, 7)
    async with Bench(chunk=2).running() as bench:
        answer = opened(await bench.ask(opening(prefix_tokens=6, history=run_of(right[:3]))))

    assert list(answer.tokens) == right[3:6]


async def test_sessions_beyond_the_slots_evict_the_one_idle_longest() -> None:
    async with Bench(slots=2).running() as bench:
        for name in ("a", "b"):
            await bench.ask(opening(generation=name))
            bench.now += 1
        await bench.ask(backlog(3, run_of([1]), [True], generation="a"))
        bench.now += 1

        await bench.ask(opening(generation="c"))

        assert len(bench.sessions) == 2
        assert bench.sessions.find(key(generation="b"), bench.now) is None
        assert bench.engine.counters.evicted == 1


@pytest.mark.parametrize("forward_s", [0.001, 0.03, 0.4, 2.5])  # keep_s is 1, deadlines are 5
@pytest.mark.parametrize("rng_seed", range(5))
def test_more_devices_than_slots_take_turns_and_make_their_pictures(
    forward_s: float, rng_seed: int
) -> None:
    async def all_at_once() -> list[list[int]]:
        async with Bench(slots=2, keep_s=1.0, forward_s=forward_s).running() as bench:
            devices = [device(bench, index, 0.5, rng_seed) for index in range(5)]
            pictures = await asyncio.gather(*map(_persistent, devices))
            assert bench.engine.counters.full > 0
        return pictures

    async def one_by_one() -> list[list[int]]:
        async with Bench().running() as quiet:
            return [values(await device(quiet, index, 0.5).picture()) for index in range(5)]

    assert run_in_virtual_time(all_at_once()) == asyncio.run(one_by_one())


async def _persistent(one: ToyDevice) -> list[int]:
    while len(one.run) < POSITIONS:
        try:
            await one.picture()
        except BusyError as busy:
            await asyncio.sleep(busy.retry_after_s)
    one.bench.engine.close(key(one.node))
    return values(one.run)


def test_idle_time_begins_with_the_answer_however_long_the_forward_took() -> None:
    async def ask_in_turns() -> tuple[Answer, Answer]:
        async with Bench(slots=1, keep_s=1.0, forward_s=3.0).running() as bench:
            await bench.ask(opening(generation="a", prefix_tokens=0))
            other = await bench.ask(opening(generation="b", prefix_tokens=0))
            own = await bench.ask(backlog(0, run_of([0]), [True], generation="a"))
            return other, own

    other, own = run_in_virtual_time(ask_in_turns())

    assert isinstance(other, Full)
    judged(own)


async def test_a_busy_session_is_not_evicted() -> None:
    bench = Bench(slots=1, keep_s=5.0)
    async with bench.running():
        await bench.ask(opening(generation="a"))

        refused = await bench.ask(opening(generation="b"))
        bench.now += 5
        taken = await bench.ask(opening(generation="b"))

    assert isinstance(refused, Full)
    assert isinstance(taken, Opened)


async def test_a_full_queue_answers_at_once() -> None:
    bench = Bench(limits=replace(LIMITS, jobs=1))

    async def reply(answer: Answer) -> None:
        raise AssertionError(answer)

    bench.engine.submit(opening(generation="a"), reply)
    answer = bench.engine.submit(opening(generation="b"), reply)

    assert isinstance(answer, Full)
    assert answer.retry_after_s > 0
    assert len(bench.sessions) == 1


async def test_a_request_whose_deadline_passed_is_answered_busy_and_may_be_asked_again() -> None:
    bench = Bench()

    async def reply(answer: Answer) -> None:
        bench.late.append(answer)

    bench.engine.submit(opening(request_id="o", deadline_s=1), reply)
    bench.engine.submit(backlog(3, run_of([1]), [True]), reply)
    bench.now += 2
    async with bench.running():
        answer = await bench.ask(opening(generation="other"))
        again = await bench.ask(opening(request_id="o", deadline_s=1))

    assert [type(each) for each in bench.late] == [Full, Denied]
    assert bench.engine.counters.late == 1
    assert isinstance(answer, Opened)
    assert list(opened(again).tokens) == cloud_only(CAPTION, 7, 3)


async def test_logits_that_are_no_numbers_end_their_session_and_no_other() -> None:
    async with Bench().running() as bench:
        for name in "ab":
            await bench.ask(opening(generation=name))
        bench.toy.poisoned = next(iter(bench.toy.captions))
        answers = await bench.ask_all(
            [backlog(3, run_of([1]), [True], generation=name) for name in "ab"]
        )
        gone = await bench.ask(backlog(3, run_of([1]), [True], generation="a"))

    assert sorted(type(answer).__name__ for answer in answers) == ["Full", "Judged"]
    assert bench.engine.counters.failed == 1
    assert (gone == Denied(Reason.UNKNOWN_SESSION)) == isinstance(answers[0], Full)


async def test_a_caption_that_cannot_be_told_ends_its_session_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Bench().running() as bench:
        monkeypatch.setattr(bench.toy, "told", lambda _: 1 / 0)
        answers = await bench.ask_all(
            [opening(generation=name, wants_condition=name == "a") for name in "ab"]
        )

    assert [type(answer) for answer in answers] == [Full, Opened]
    assert bench.engine.counters.failed == 1


async def test_a_failed_forward_ends_its_sessions_and_not_the_engine() -> None:
    async with Bench().running() as bench:
        await bench.ask(opening())
        bench.toy.fails = 1

        failed = await bench.ask(backlog(3, run_of([1]), [True]))
        gone = await bench.ask(backlog(3, run_of([1]), [True]))
        back = await bench.ask(opening())

    assert isinstance(failed, Full)
    assert gone == Denied(Reason.UNKNOWN_SESSION)
    assert isinstance(back, Opened)


async def test_a_forward_that_cannot_be_prepared_is_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: Sequence[Span]) -> Never:
        raise RuntimeError("out of memory")

    async with Bench().running() as bench:
        await bench.ask(opening())
        with monkeypatch.context() as patched:
            patched.setattr(bench.toy, "prepare", broken)
            failed = await bench.ask(backlog(3, run_of([1]), [True]))
        back = await bench.ask(opening())

    assert isinstance(failed, Full)
    assert isinstance(back, Opened)


async def test_a_closed_session_frees_its_slot_and_drops_what_waits() -> None:
    bench = Bench(slots=1)

    async def reply(answer: Answer) -> None:
        bench.late.append(answer)

    bench.engine.submit(opening(generation="a"), reply)
    bench.engine.close(key(generation="a"))
    async with bench.running():
        await bench.ask(opening(generation="b"))

    assert bench.late == []
    assert len(bench.sessions) == 1


async def test_a_stop_answers_the_forward_under_way() -> None:
    bench = Bench()
    answers: list[Answer] = []

    async def reply(answer: Answer) -> None:
        answers.append(answer)

    task = asyncio.create_task(bench.engine.run(), name="engine")
    bench.engine.submit(opening(prefix_tokens=0), reply)
    for _ in range(3):  # the engine takes the job and its thread begins
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert len(answers) == 1


def test_the_next_forward_is_ready_when_the_last_one_ends() -> None:
    async def ask_in_turns() -> tuple[list[float], list[float]]:
        limits = replace(LIMITS, batch_spans=2)
        async with Bench(limits=limits, forward_s=0.1).running() as bench:
            for node in "ab":
                opened(await bench.ask(opening(node=node, prefix_tokens=0)))
            ready: list[float] = []
            prepare, begun = bench.toy.prepare, bench.clock()

            def noted(spans: Sequence[Span]) -> Callable[[], list[Logits]]:
                ready.append(bench.clock() - begun)
                return prepare(spans)

            bench.toy.prepare = noted  # type: ignore[method-assign]

            async def ask(node: str, at: float) -> float:
                await asyncio.sleep(at)
                judged(await bench.ask(backlog(0, run_of([1]), [True], node=node)))
                return bench.clock() - begun

            return ready, list(await asyncio.gather(ask("a", 0), ask("b", 0.05)))

    ready, answered = run_in_virtual_time(ask_in_turns())

    assert ready == pytest.approx([0, 0.09])
    assert answered == pytest.approx([0.1, 0.2])


async def test_the_next_forward_runs_while_answers_go_but_not_for_their_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_run = threading.Event(), threading.Event()
    answering, may_end = asyncio.Event(), asyncio.Event()

    async def slow_reply(_: Answer) -> None:
        answering.set()
        await may_end.wait()

    # One span is half of a forward, and goes before the answers of the last one.
    async with Bench(limits=replace(LIMITS, batch_spans=2)).running() as bench:
        for node in "ab":
            opened(await bench.ask(opening(node=node, prefix_tokens=0)))
        session, run, before = (
            bench.sessions.find(key("b"), 0),
            bench.toy.run,
            len(bench.toy.batches),
        )

        def held(spans: Sequence[Span]) -> list[Logits]:
            begun.set()
            assert may_run.wait(5)
            return run(spans)

        monkeypatch.setattr(bench.toy, "run", held)
        first = backlog(0, run_of([1]), [True], node="a")
        assert bench.engine.submit(first, slow_reply) is None
        assert await asyncio.to_thread(begun.wait, 5)
        other = asyncio.create_task(bench.ask(backlog(0, run_of([1]), [False], node="b")))
        again = asyncio.create_task(bench.ask(backlog(0, run_of([1]), [False], node="a", branch=9)))
        await asyncio.sleep(0)  # both are submitted
        may_run.set()
        async with asyncio.timeout(5):
            await answering.wait()
            while len(bench.toy.batches) < before + 2:
                await asyncio.sleep(0.001)
        assert session is not None
        assert [span.slot for span in bench.toy.batches[-1]] == [session.slot]
        assert not other.done()
        assert not again.done()
        may_end.set()
        judged(await other)
        assert isinstance(await again, Denied)


def test_pairs_of_seeds_give_different_pictures() -> None:
    pictures = [cloud_only(CAPTION, seed) for seed in range(5)]

    assert all(one != other for one, other in pairwise(pictures))


async def test_the_residual_rule_judges_by_the_drafts_laws_and_its_own_luck() -> None:
    rule, right = Rule("residual", 1.2), cloud_only(CAPTION, 7)
    sent = law_to_send(np.zeros(VOCAB))
    for seed in range(7, 27):
        async with Bench().running() as bench:
            begun = replace(opening(prefix_tokens=0, seed=seed), rule=rule)
            await bench.ask(begun)
            asked = backlog(
                0, run_of(right[:4], [False, True, False, False]), [True, False, True, True]
            )
            verdict = judged(await bench.ask(replace(asked, laws=(sent,) * 3)))

        run = run_of(right[:4], [False, True, False, False])
        before = [run_of(right[:end], [False, True, False, False][:end]) for end in range(4)]
        logits = np.stack([toy_logits(CAPTION, part, use_features=True) for part in before])
        expected = judge_residual(
            Evidence(
                run.tokens,
                np.array([True, False, True, True]),
                np.stack([sent.dense(VOCAB)] * 4),
                law(sharpen(logits, SAMPLING).astype(np.float64)),
            ),
            luck_of(seed, np.arange(4), VOCAB),
            rule.relaxation,
        )
        assert (verdict.accepted, verdict.next_token) == (expected.accepted, expected.next_token)


async def test_the_residual_rule_without_laws_is_denied_with_what_is_missing() -> None:
    async with Bench().running() as bench:
        await bench.ask(replace(opening(prefix_tokens=0), rule=Rule("residual")))
        denied = await bench.ask(backlog(0, run_of([0, 1]), [True, False]))

    assert isinstance(denied, Denied)
    assert denied.reason is Reason.INVALID
    assert "law" in denied.detail
