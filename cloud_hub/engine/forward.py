"""Run: one forward over the spans of many sessions, away from the event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from cloud_hub.engine.requests import Logits, Opening
from cloud_hub.engine.runner import Runner, Span
from cloud_hub.engine.steps import Task
from fleet.logs import get_logger

log = get_logger(__name__)


class Step(NamedTuple):
    """A task and its span in the forward."""

    task: Task
    span: Span


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long a forward took, and the logits [n, V] of each step; None: it failed."""

    forward_s: float
    rows: list[Logits | None]


Offload = Callable[[Callable[[], Outcome]], Awaitable[Outcome]]


def one_thread() -> Offload:
    """Calls in one thread: what the last forward left in a core's caches is there for the next."""
    pool = ThreadPoolExecutor(1, "forward")

    def offload(work: Callable[[], Outcome]) -> Awaitable[Outcome]:
        return asyncio.get_running_loop().run_in_executor(pool, copy_context().run, work)

    return offload


def prepared(
    runner: Runner, steps: Sequence[Step], clock: Callable[[], float]
) -> Callable[[], Outcome]:
    """What runs the steps in a thread, as far as it can be made before. Neither raises."""
    try:
        forward = runner.prepare([step.span for step in steps])
    except Exception:
        log.exception("forward_failed", spans=len(steps))
        return lambda: Outcome(0.0, [None] * len(steps))
    return partial(_compute, runner, forward, steps, clock)


def _compute(
    runner: Runner,
    forward: Callable[[], list[Logits]],
    steps: Sequence[Step],
    clock: Callable[[], float],
) -> Outcome:
    """Of the tasks it sets what their captions mean."""
    started = clock()
    try:
        rows = forward()
    except Exception:
        log.exception("forward_failed", spans=len(steps))
        return Outcome(clock() - started, [None] * len(steps))
    forward_s = clock() - started
    told = [_is_told(runner, step) for step in steps]
    return Outcome(forward_s, [row if fine else None for row, fine in zip(rows, told, strict=True)])


def _is_told(runner: Runner, step: Step) -> bool:
    """Sets what the step's caption means, if its device asks; one session's trouble is no other's.

    Here, since the runner's captions are for its own thread.
    """
    task, span = step
    if span.caption is None or not isinstance(task.request, Opening):
        return True
    if task.request.wants_condition:
        try:
            task.condition = runner.told(span.caption)
        except Exception:
            log.exception("step_failed", request_id=task.request.request_id)
            return False
    return True
