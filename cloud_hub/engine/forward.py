"""Run: one forward over the spans of many sessions, away from the event loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    rows: list[Logits] | None


def compute(
    runner: Runner, steps: Sequence[Step], clock: Callable[[], float], started: float
) -> Outcome:
    """Runs in a thread; of the tasks it sets what their captions mean. Never raises."""
    try:
        rows = runner.run([step.span for step in steps])
        for task, span in steps:
            if span.caption is not None and _wants_condition(task):
                task.condition = runner.told(span.caption)
    except Exception:
        log.exception("forward_failed", spans=len(steps))
        return Outcome(clock() - started, None)
    return Outcome(clock() - started, rows)


def _wants_condition(task: Task) -> bool:
    return isinstance(task.request, Opening) and task.request.wants_condition
