"""Forwards run in one thread, beside the event loop."""

import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
import torch

from cloud_hub.engine.forward import Outcome, one_thread
from cloud_hub.engine.torch_runner import prepare_process

name: ContextVar[str] = ContextVar("name")


async def test_one_thread_computes_them_all_in_the_context_of_who_asks() -> None:
    offload, seen = one_thread(), []

    def work() -> Outcome:
        seen.append((threading.current_thread(), name.get()))
        return Outcome(0.0, [])

    for each in ("a", "b", "c"):
        name.set(each)
        await offload(work)

    assert [found for _, found in seen] == ["a", "b", "c"]
    assert len({thread for thread, _ in seen}) == 1
    assert threading.current_thread() not in dict(seen)


@pytest.fixture
def process() -> Iterator[None]:
    before = torch.get_num_threads(), sys.getswitchinterval()
    yield
    torch.set_num_threads(before[0])
    sys.setswitchinterval(before[1])


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(("asked", "expected"), [(1, 1), (2, 2), (None, 3)])
def test_a_process_gives_a_forward_its_threads_and_python_s_lock_soon(
    asked: int | None, expected: int
) -> None:
    torch.set_num_threads(3)

    prepare_process(asked)

    assert torch.get_num_threads() == expected
    assert sys.getswitchinterval() < 0.001
