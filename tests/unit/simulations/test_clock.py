"""The virtual clock: time jumps, and what would be threads take the time that they work."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from simulations.world.clock import DeadlockError, VirtualTimeLoop, run_in_virtual_time


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def sleep() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    begun = time.monotonic()

    assert run_in_virtual_time(sleep()) == pytest.approx(3600)
    assert time.monotonic() - begun < 60


def test_work_in_a_thread_takes_its_time_and_sees_what_happens_meanwhile() -> None:
    async def draft() -> tuple[list[float], float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        verdicts: list[float] = []
        loop.call_later(0.25, verdicts.append, 0.25)

        def steps() -> list[float]:
            seen = []
            for _ in range(4):
                loop.work(0.1)
                seen.append(loop.time() if verdicts else 0.0)
            return seen

        return await asyncio.to_thread(steps), loop.time()

    seen, ended = run_in_virtual_time(draft())

    assert seen == pytest.approx([0.0, 0.0, 0.3, 0.4])
    assert ended == pytest.approx(0.4)


def test_what_one_thread_gets_is_done_one_after_the_other() -> None:
    async def several() -> list[float]:
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        assert isinstance(loop, VirtualTimeLoop)
        ended: list[float] = []

        def work(seconds: float) -> None:
            loop.work(seconds)
            ended.append(loop.time())

        loop.call_later(0.05, ended.append, 0.0)  # else nothing happens meanwhile
        await asyncio.gather(*(loop.run_in_executor(pool, work, each) for each in (0.3, 0.2, 0.1)))
        await loop.run_in_executor(pool, work, 0.1)
        return ended

    assert run_in_virtual_time(several()) == pytest.approx([0.0, 0.3, 0.5, 0.6, 0.7])


def test_what_fails_in_a_thread_fails_where_it_is_awaited() -> None:
    async def fail() -> None:
        def broken() -> None:
            raise ArithmeticError("as planned")

        await asyncio.to_thread(broken)

    with pytest.raises(ArithmeticError, match="as planned"):
        run_in_virtual_time(fail())


def test_work_on_the_event_loop_itself_is_an_error() -> None:
    async def block() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.work(1)

    with pytest.raises(RuntimeError, match="hold up everything"):
        run_in_virtual_time(block())


def test_a_wait_that_nobody_ends_is_told() -> None:
    with pytest.raises(DeadlockError):
        run_in_virtual_time(asyncio.Event().wait())


def test_what_is_due_at_one_moment_happens_in_the_order_in_which_it_was_set() -> None:
    async def both() -> list[int]:
        loop, seen = asyncio.get_running_loop(), list[int]()
        for number in range(50):
            loop.call_at(7.0, seen.append, number)
        await asyncio.sleep(8)
        return seen

    assert run_in_virtual_time(both()) == list(range(50))


def test_a_timer_that_is_cancelled_never_fires_and_is_not_kept() -> None:
    async def many() -> tuple[list[int], int]:
        loop, seen = asyncio.get_running_loop(), list[int]()
        assert isinstance(loop, VirtualTimeLoop)
        for number in range(10_000):
            timer = loop.call_later(3600, seen.append, number)
            if number:
                timer.cancel()
        kept = loop.timers
        await asyncio.sleep(4000)
        return seen, kept

    seen, kept = run_in_virtual_time(many())

    assert seen == [0]
    assert kept < 1000


def test_a_callback_that_fails_is_told_and_the_loop_goes_on() -> None:
    async def fail() -> list[str]:
        loop, told = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, found: told.append(str(found["exception"])))
        loop.call_later(1, [].pop)
        await asyncio.sleep(2)
        return told

    assert run_in_virtual_time(fail()) == ["pop from empty list"]


def test_work_that_nothing_can_disturb_still_takes_its_time() -> None:
    async def alone() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)

        def work() -> None:
            for _ in range(10):
                loop.work(0.5)

        await asyncio.to_thread(work)
        return loop.time()

    assert run_in_virtual_time(alone()) == pytest.approx(5)
