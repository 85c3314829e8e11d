"""The loop of one picture, against a toy cloud on the in-memory broker."""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_agent.device import Order
from edge_agent.generate import Generation, Outcome, Progress
from edge_agent.pace import Pace
from edge_agent.plan import Plan
from edge_agent.verifier import Patience, Verifier
from fleet.decoding.accept import Policy, device_only, verify_all
from fleet.errors import CapacityError, InvalidInputError, TransportError
from fleet.ids import GenerationId, WorkerId
from fleet.protocol.messages import GenerationOpened, Refused, VerifyResponse
from fleet.transport.memory import MemoryBroker
from tests.unit.edge_agent.toy import (
    CIAR,
    POLICIES,
    ToyDevice,
    ToyDrafter,
    ToyHub,
    order,
    stop_and_wait,
)
from tests.unit.edge_agent.toy_cloud import Answer, jitter, toy_cloud, verifier

PLAN = Plan(
    deadline_s=10,
    window=8,
    in_flight=3,
    chunk=4,
    least_chance=0.02,
    start_patience_s=0.2,
    outage_patience_s=5,
)
PATIENT = Patience(open_s=5, verify_s=5, retry_after_s=0.02)
QUICK = Patience(open_s=0.5, verify_s=0.3, retry_after_s=0.05)


def generation(wanted: Order, plan: Plan = PLAN, *, fail: bool = False) -> Generation:
    return Generation(
        GenerationId("g1"),
        wanted,
        ToyDevice(),
        plan,
        Pace(),
        "fail" if fail else "complete",
        lambda _: None,
    )


async def made(wanted: Order, cloud: Verifier | None, plan: Plan = PLAN) -> Outcome:
    return await generation(wanted, plan).run(cloud)


def tokens(outcome: Outcome) -> list[int]:
    return [int(token) for token in outcome.picture.tokens]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize(("window", "in_flight", "chunk"), [(1, 1, 1), (8, 3, 4), (24, 9, 24)])
async def test_a_picture_is_that_of_stop_and_wait_whatever_the_window(
    policy: Policy, window: int, in_flight: int, chunk: int
) -> None:
    plan = replace(PLAN, window=window, in_flight=in_flight, chunk=chunk)
    broker = MemoryBroker()

    for seed in range(5):
        async with toy_cloud(broker), verifier(broker, QUICK) as cloud:
            outcome = await made(order(seed, policy), cloud, plan)

        assert stop_and_wait(order(seed, policy), 24) == tokens(outcome)
        assert "" == outcome.fallback


@pytest.mark.parametrize("seed", range(4))
async def test_late_lost_and_overtaking_answers_change_time_but_not_the_picture(seed: int) -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = jitter(seed, 0.2, 0.02)
        outcome = await made(order(seed, verify_all()), cloud)

    assert stop_and_wait(order(seed, verify_all()), 24) == tokens(outcome)
    assert "" == outcome.fallback


schedules = st.lists(
    st.tuples(st.sampled_from([0.0, 0.002, 0.008, 0.02]), st.integers(0, 3)), min_size=1
)


@given(
    seed=st.integers(0, 999),
    policy=st.sampled_from([CIAR, verify_all()]),
    acceptance=st.sampled_from([0.0, 0.5, 0.95]),
    least_chance=st.sampled_from([0.02, 0.5]),
    schedule=schedules,
)
@settings(max_examples=25)
def test_no_schedule_of_late_overtaking_lost_or_repeated_verdicts_changes_the_picture(
    seed: int,
    policy: Policy,
    acceptance: float,
    least_chance: float,
    schedule: list[tuple[float, int]],
) -> None:
    """Answer k is late by the k-th delay and comes as often as the k-th count says."""
    some_come = [*schedule, (0.0, 1), (0.0, 2)]
    delays, counts = (itertools.cycle(column) for column in zip(*some_come, strict=True))
    pace = Pace()
    pace.judged(1000, round(1000 * acceptance))
    wanted = order(seed, policy)

    async def scheduled() -> Outcome:
        broker = MemoryBroker()
        async with toy_cloud(broker) as hub, verifier(broker, PATIENT) as cloud:
            hub.spoil = lambda answer: (next(delays), answer)
            hub.copies = lambda: next(counts)
            making = generation(wanted, replace(PLAN, least_chance=least_chance))
            making.pace = pace
            return await making.run(cloud)

    outcome = asyncio.run(scheduled())

    assert stop_and_wait(wanted, 24) == tokens(outcome)
    assert "" == outcome.fallback
    assert 0 == outcome.picture.tally.unverified


async def test_a_device_that_drafts_only_what_is_sure_drafts_none_in_vain() -> None:
    broker = MemoryBroker()
    making = generation(order(3, verify_all()), replace(PLAN, least_chance=1.0))
    making.pace.judged(10_000, 0)

    async with toy_cloud(broker), verifier(broker, QUICK) as cloud:
        outcome = await making.run(cloud)

    assert outcome.picture.tally.corrected > 3
    assert 0 == outcome.picture.wasted
    assert making.pace.acceptance.value > 0.1  # what stands is noticed


@pytest.mark.parametrize("policy", [CIAR, verify_all()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("judged", [0, 2, 5])
async def test_a_picture_finished_alone_and_made_again_is_that_of_an_undisturbed_cloud(
    policy: Policy, judged: int
) -> None:
    wanted, first, second = order(judged, policy), MemoryBroker(), MemoryBroker()
    async with toy_cloud(first) as hub, verifier(first, QUICK) as cloud:
        hub.spoil = lambda answer: (0.0, answer) if hub.hub.judged < judged else None
        alone = await made(wanted, cloud, replace(PLAN, outage_patience_s=0.3))
    known = alone.picture.known(wanted.prefix_tokens)
    again = generation(wanted, fail=True)
    again.begin_with(known)
    async with toy_cloud(second), verifier(second, PATIENT) as cloud:
        outcome = await again.run(cloud)

    assert "timeout" == alone.fallback
    assert alone.picture.tally.unverified > 0
    assert stop_and_wait(wanted, 24) == tokens(outcome)
    assert tokens(outcome)[: len(known.tokens)] == list(known.tokens)
    assert 0 == outcome.picture.tally.unverified


async def test_device_only_sends_nothing_at_all() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        outcome = await made(order(policy=device_only()), cloud)

    assert stop_and_wait(order(policy=device_only()), 24) == tokens(outcome)
    assert (0, 0, []) == (hub.hub.opened, hub.hub.judged, hub.closed)
    assert 0 == outcome.meter.bytes_up
    assert 24 == outcome.picture.tally.local


async def test_a_finished_picture_frees_its_session() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        await made(order(), cloud)
        await asyncio.sleep(0)

        assert ["g1"] == hub.closed


async def test_a_worker_that_forgets_everything_again_and_again_gets_the_history() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:

        def forget(answer: Answer) -> tuple[float, Answer] | None:
            if isinstance(answer, VerifyResponse) and hub.hub.judged % 3 == 0:
                hub.hub.sessions.clear()
            return 0.0, answer

        hub.spoil = forget
        outcome = await made(order(3, verify_all()), cloud)

    assert stop_and_wait(order(3, verify_all()), 24) == tokens(outcome)
    assert outcome.meter.reopened > 1


async def test_another_worker_takes_over_when_one_dies() -> None:
    broker = MemoryBroker()

    async with verifier(broker, QUICK) as cloud:
        async with toy_cloud(broker, worker="w1") as first:
            first.spoil = lambda answer: (
                (0.0, answer) if first.hub.judged < 3 else None  # dies after three verdicts
            )
            making = asyncio.create_task(made(order(1, verify_all()), cloud))
            while first.hub.judged < 3:
                await asyncio.sleep(0.005)
        async with toy_cloud(broker, worker="w2") as second:
            outcome = await making

    assert stop_and_wait(order(1, verify_all()), 24) == tokens(outcome)
    assert second.hub.opened >= 1


async def test_a_worker_s_last_will_is_quicker_than_any_deadline() -> None:
    broker = MemoryBroker()
    patient = Patience(open_s=9, verify_s=9, retry_after_s=9)

    async with verifier(broker, patient) as cloud:
        async with toy_cloud(broker, worker="w1") as first:
            first.spoil = lambda answer: (0.0, answer) if first.hub.judged < 3 else None
            making = asyncio.create_task(made(order(1, verify_all()), cloud))
            while first.hub.judged < 3:
                await asyncio.sleep(0.005)
        async with toy_cloud(broker, worker="w2"):
            cloud.worker_is_down(WorkerId("another"))
            cloud.worker_is_down(WorkerId("w1"))
            async with asyncio.timeout(5):
                outcome = await making

    assert stop_and_wait(order(1, verify_all()), 24) == tokens(outcome)


async def test_a_broker_that_comes_back_costs_time_only() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = lambda answer: (0.01, answer)
        making = asyncio.create_task(made(order(5, verify_all()), cloud))
        while hub.hub.judged < 4:
            await asyncio.sleep(0.005)
        broker.stop()
        await asyncio.sleep(0.3)
        broker.start()
        outcome = await making

    assert stop_and_wait(order(5, verify_all()), 24) == tokens(outcome)
    assert "" == outcome.fallback


async def test_a_broker_that_goes_while_the_picture_is_opened_is_waited_for_too() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = lambda answer: (0.2, answer)
        making = asyncio.create_task(made(order(5), cloud))
        while not hub.hub.opened:
            await asyncio.sleep(0.005)
        broker.stop()
        await asyncio.sleep(2 * PLAN.start_patience_s)
        broker.start()
        outcome = await making

    assert stop_and_wait(order(5), 24) == tokens(outcome)


async def test_without_a_broker_the_device_finishes_alone_and_says_so() -> None:
    broker = MemoryBroker()
    broker.stop()

    async with verifier(broker, QUICK) as cloud:
        outcome = await made(order(), cloud)

    assert stop_and_wait(order(prefix=0), 24, cloud=False) == tokens(outcome)
    assert "no_broker" == outcome.fallback
    assert outcome.picture.tally.unverified > 0


async def test_a_broker_that_dies_for_good_leaves_the_settled_tokens_and_finishes() -> None:
    broker = MemoryBroker()
    plan = replace(PLAN, outage_patience_s=0.5)

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = lambda answer: (0.005, answer)
        making = asyncio.create_task(made(order(5, verify_all()), cloud, plan))
        while hub.hub.judged < 6:
            await asyncio.sleep(0.001)
        broker.stop()
        outcome = await making

    whole = stop_and_wait(order(5, verify_all()), 24)
    settled = outcome.picture.tally.prefix + outcome.picture.tally.verified
    assert "no_broker" == outcome.fallback
    assert 24 == settled + outcome.picture.tally.unverified
    assert whole[:settled] == tokens(outcome)[:settled]


async def test_a_silent_hub_is_given_up_at_the_deadline() -> None:
    broker = MemoryBroker()
    plan = replace(PLAN, deadline_s=1.0)

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = lambda _: None
        begun = asyncio.get_running_loop().time()
        outcome = await made(order(), cloud, plan)

    assert "timeout" == outcome.fallback
    assert asyncio.get_running_loop().time() - begun < 1.5


async def test_a_busy_hub_is_asked_again_after_the_time_it_names() -> None:
    broker = MemoryBroker()
    turns = itertools.count()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.is_busy = lambda: next(turns) % 2 == 0
        outcome = await made(order(2), cloud)

    assert stop_and_wait(order(2), 24) == tokens(outcome)


async def test_a_hub_busy_until_the_deadline_fails_a_caller_who_asked_for_that() -> None:
    broker = MemoryBroker()
    plan = replace(PLAN, deadline_s=0.8)

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.is_busy = lambda: True

        with pytest.raises(CapacityError, match="busy"):
            await generation(order(), plan, fail=True).run(cloud)


async def test_without_a_broker_a_caller_who_asked_for_that_gets_an_error() -> None:
    broker = MemoryBroker()
    broker.stop()

    async with verifier(broker, QUICK) as cloud:
        with pytest.raises(TransportError, match="no broker"):
            await generation(order(), fail=True).run(cloud)


async def test_a_hub_of_another_family_is_not_asked_again() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = lambda answer: (
            0.0,
            Refused(
                request_id=answer.request_id,
                generation_id=answer.generation_id,
                reason="other_family",
                detail="this hub speaks another",
            ),
        )
        outcome = await made(order(), cloud)

    assert "refused" == outcome.fallback
    assert "this hub speaks another" == outcome.detail
    assert 1 == hub.hub.opened


async def test_a_prefix_of_unknown_codes_is_refused() -> None:
    broker = MemoryBroker()

    def nonsense(answer: Answer) -> tuple[float, Answer] | None:
        if isinstance(answer, GenerationOpened):
            return 0.0, answer.model_copy(update={"tokens": b"\xff\xff"})
        return 0.0, answer

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = nonsense
        outcome = await made(order(), cloud)

    assert "refused" == outcome.fallback


async def test_an_unreadable_caption_is_refused_before_anything_is_sent() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        with pytest.raises(InvalidInputError):
            await made(order(caption=""), cloud)

    assert 0 == hub.hub.opened


async def test_a_cancelled_picture_frees_its_session() -> None:
    broker = MemoryBroker()

    async with toy_cloud(broker) as hub, verifier(broker, QUICK) as cloud:
        hub.spoil = lambda answer: (0.05, answer)
        making = asyncio.create_task(made(order(5, verify_all()), cloud))
        while hub.hub.judged < 2:
            await asyncio.sleep(0.005)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await asyncio.sleep(0)

        assert ["g1"] == hub.closed


async def test_progress_only_grows_in_settled_tokens_and_ends_at_all() -> None:
    broker = MemoryBroker()
    seen: list[Progress] = []
    wanted = generation(order(4))
    wanted.report = seen.append

    async with toy_cloud(broker), verifier(broker, QUICK) as cloud:
        await wanted.run(cloud)

    settled = [progress.settled for progress in seen]
    assert settled == sorted(settled)
    assert 24 == settled[-1]


async def test_every_step_continues_the_picture_s_own_tokens() -> None:
    """The cache row that a step writes holds the token that stands before it."""

    class Checked(ToyDrafter):
        def decode_rows(self) -> list[int]:
            return self.rows

    device = ToyDevice()
    drafters: list[ToyDrafter] = []

    class Device(ToyDevice):
        def begin(self, order: Order) -> ToyDrafter:
            drafters.append(Checked(order, self.size))
            return drafters[-1]

        def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
            return device.decode(tokens)

    broker = MemoryBroker()
    wanted = generation(order(6, verify_all()))
    wanted.device = Device()
    async with toy_cloud(broker), verifier(broker, QUICK) as cloud:
        outcome = await wanted.run(cloud)

    assert [-1, *tokens(outcome)[:-1]] == drafters[0].rows


def test_the_toy_hub_corrects_and_accepts() -> None:
    """Otherwise the tests above would show little."""
    wanted = order(0, verify_all())
    whole = stop_and_wait(wanted, 24)
    drafts = stop_and_wait(wanted, 24, cloud=False)

    assert whole != drafts
    assert ToyHub().size == 24
