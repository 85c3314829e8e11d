"""Turns among callers: one at a time, fair, bounded, and none lost to a caller who leaves."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.turns import Turns
from fleet.errors import CapacityError


async def test_callers_take_turns_and_each_keeps_its_order() -> None:
    turns, order = Turns(10), list[str]()
    ahead: list[int] = []

    async def picture(caller: str, name: str) -> None:
        async with turns.turn(caller, ahead.append):
            order.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for caller, name in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("b", "b2")]:
            tasks.create_task(picture(caller, name))

    assert ["a1", "a2", "b1", "a3", "b2"] == order
    assert [1, 2, 2, 4] == ahead


async def test_more_than_may_wait_are_refused() -> None:
    turns = Turns(1)

    async with turns.turn("a"):
        waiting = asyncio.create_task(_take(turns, "b"))
        await asyncio.sleep(0)
        with pytest.raises(CapacityError, match="1 pictures wait"):
            async with turns.turn("c"):
                pass
    await waiting

    assert not turns.is_taken


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=12))
@settings(max_examples=60)
def test_whoever_leaves_the_others_get_their_turns(
    callers: list[tuple[str, int, bool]],
) -> None:
    """Some leave after a few steps of the loop: while waiting, when called, or at work."""
    turns, most, made = Turns(100), [0], [0]

    async def picture(caller: str) -> None:
        async with turns.turn(caller):
            most[0] += 1
            assert most[0] == 1
            try:
                await asyncio.sleep(0)
                made[0] += 1
            finally:
                most[0] -= 1

    async def leave(task: "asyncio.Task[None]", steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()

    async def scenario() -> None:
        tasks = [asyncio.create_task(picture(caller)) for caller, _, _ in callers]
        leavers = [
            asyncio.create_task(leave(task, steps))
            for task, (_, steps, leaves) in zip(tasks, callers, strict=True)
            if leaves
        ]
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks, *leavers, return_exceptions=True)

    asyncio.run(scenario())

    assert made[0] >= sum(not leaves for _, _, leaves in callers)
    assert (0, False) == (turns.waiting, turns.is_taken)


async def _take(turns: Turns, caller: str) -> None:
    async with turns.turn(caller):
        pass
