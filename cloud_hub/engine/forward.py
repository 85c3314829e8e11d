"""Run: one forward over the spans of many sessions, away from the event loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cloud_hub.engine.requests import Answer, Logits, Opened, Opening
from cloud_hub.engine.runner import Runner, Span
from cloud_hub.engine.steps import Task, settle
from fleet.logs import get_logger

log = get_logger(__name__)


class Step(NamedTuple):
    """A task and its span in the forward."""

    task: Task
    span: Span


@dataclass(frozen=True, slots=True)
class Broken:
    """The step failed, and what its slot holds is unknown."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long a forward took, and what became of each step: None needs another forward."""

    forward_s: float
    results: list[Answer | Broken | None]


def compute(
    runner: Runner, steps: Sequence[Step], clock: Callable[[], float], started: float
) -> Outcome:
    """Runs in a thread; touches only the sessions of the steps. Never raises."""
    try:
        rows = runner.run([step.span for step in steps])
    except Exception:
        log.exception("forward_failed", spans=len(steps))
        return Outcome(clock() - started, [Broken()] * len(steps))
    forward_s = clock() - started
    results = [
        _settle(runner, step, logits, forward_s) for step, logits in zip(steps, rows, strict=True)
    ]
    return Outcome(forward_s, results)


def _settle(runner: Runner, step: Step, rows: Logits, forward_s: float) -> Answer | Broken | None:
    """One session's trouble is no other's."""
    task = step.task
    task.forwards += 1
    task.forward_s += forward_s
    try:
        if not np.isfinite(rows).all():
            raise ArithmeticError("the model gave logits that are no numbers")
        answer = settle(task, step.span, rows)
        if isinstance(answer, Opened) and isinstance(task.request, Opening):
            return _with_condition(runner, task.request, answer)
        return answer
    except Exception:
        log.exception("step_failed", request_id=task.request.request_id)
        return Broken()


def _with_condition(runner: Runner, opening: Opening, answer: Opened) -> Opened:
    if not opening.wants_condition:
        return answer
    return replace(answer, condition=runner.told(opening.caption))
