"""Settle: what the steps of a forward make of its logits, with one joint draw for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloud_hub.engine.forward import Outcome, Step
from cloud_hub.engine.judging import Drawing
from cloud_hub.engine.requests import Answer, Logits
from cloud_hub.engine.steps import settle
from fleet.decoding.draws import Ask, Drawn, draw_all
from fleet.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Broken:
    """The step failed, and what its slot holds is unknown."""


Result = Answer | Broken | None  # None: another forward is needed


def settle_all(steps: Sequence[Step], outcome: Outcome) -> list[Result]:
    """What became of each step; moves their sessions on. Never raises."""
    settling = [
        _Settling(step, rows, outcome.forward_s)
        for step, rows in zip(steps, outcome.rows, strict=True)
    ]
    while asking := [each for each in settling if each.ask is not None]:
        # No input that was let in makes this fail; if it does, a session's state is unknown.
        try:
            found = draw_all([each.ask for each in asking if each.ask is not None])
        except Exception:
            log.exception("draws_failed", spans=len(asking))
            for each in asking:
                each.give_up()
            continue
        for each, drawn in zip(asking, found, strict=True):
            each.go_on(drawn)
    return [each.result for each in settling]


class _Settling:
    """One step on its way from logits to its result; one session's trouble is no other's."""

    def __init__(self, step: Step, rows: Logits | None, forward_s: float) -> None:
        step.task.forwards += 1
        step.task.forward_s += forward_s
        self.ask: Ask | None = None  # what it has to have drawn to go on
        self.result: Result = None
        self._step = step
        if rows is None:
            self.give_up()
            return
        self._drawing = self._begin(rows)
        self.go_on(None)

    def go_on(self, drawn: Drawn | None) -> None:
        """Goes on with what was drawn, to its next question or its end."""
        try:
            self.ask = next(self._drawing) if drawn is None else self._drawing.send(drawn)
        except StopIteration as end:
            self.ask, self.result = None, end.value
        except Exception:
            log.exception("step_failed", request_id=self._step.task.request.request_id)
            self.give_up()

    def give_up(self) -> None:
        """Ends it as broken."""
        self.ask, self.result = None, Broken()

    def _begin(self, rows: Logits) -> Drawing[Answer | None]:
        if not np.isfinite(rows).all():
            raise ArithmeticError("the model gave logits that are no numbers")
        return (yield from settle(*self._step, rows))
