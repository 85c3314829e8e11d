"""The loop that the stages with a checkpoint share: steps until the time is spent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.training.budget import Bar, Budget, Curve

Figures = Mapping[str, float]


class Run(Protocol):
    """What is trained, with everything that its checkpoint holds."""

    budget: Budget
    step: int

    def save(self, path: Path) -> None:
        """Write the checkpoint."""


@dataclass(frozen=True)
class Stage:
    """What a stage does in its time, and how often.

    Attributes:
        take_step: Moves the run on by one and returns the step's figures; the bar shows the first.
        look: Publishes what was reached and returns its figures.
        save_every_s: The longest time of training that a kill can cost.
        look_every_s: None: at the end only, as always.
        log_every: In steps.
    """

    checkpoint: Path
    curve: Path
    take_step: Callable[[], Figures]
    look: Callable[[], Figures]
    save_every_s: float
    look_every_s: float | None = None
    log_every: int = 10


def keep_training(run: Run, stage: Stage, bar: Bar) -> None:
    """Take steps from where the run stands until its budget is spent."""
    curve = Curve(stage.curve)
    curve.rewind(run.step)
    run.budget.tick()
    saved_s = looked_s = run.budget.used_s
    while run.budget.tick() < 1.0:
        figures, used_s = stage.take_step(), run.budget.used_s
        name, value = next(iter(figures.items()))
        bar.show(run.budget.fraction, f"step {run.step} {name} {value:.3f}")
        if run.step % stage.log_every == 0:
            curve.append(step=run.step, s=used_s, **figures)
        if stage.look_every_s is not None and used_s - looked_s > stage.look_every_s:
            looked_s = used_s
            curve.append(step=run.step, s=used_s, **stage.look())
        if used_s - saved_s > stage.save_every_s:
            saved_s = used_s
            run.save(stage.checkpoint)
    figures = stage.look()
    run.save(stage.checkpoint)
    curve.append(step=run.step, s=run.budget.used_s, **figures)
