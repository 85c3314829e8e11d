"""The loop of a training stage: what it does how often, and what a kill can cost."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.progress import Progress

from fleet.training.budget import Bar, Budget
from fleet.training.keep import Stage, keep_training

LONG_S = 1e9


class Killed(BaseException):
    """Ends a run from within."""


class Run:
    """A run whose every step takes a second, and which is killed at one."""

    def __init__(self, total_s: float, killed_at: int = -1) -> None:
        self.budget = Budget(total_s)
        self.step = 0
        self.events: list[str] = []
        self._killed_at = killed_at

    def take_step(self) -> dict[str, float]:
        if self.step == self._killed_at:
            raise Killed
        self.step += 1
        self.budget.used_s += 1
        return {"loss": 1 / self.step}

    def look(self) -> dict[str, float]:
        self.events.append(f"look {self.step}")
        return {"validation": float(self.step)}

    def save(self, path: Path) -> None:
        self.events.append(f"save {self.step}")
        path.write_text(f"{self.step} {self.budget.used_s}")

    def load(self, path: Path) -> None:
        step, used_s = path.read_text().split()
        self.step, self.budget.used_s = int(step), float(used_s)


def train(run: Run, folder: Path, **often: float) -> list[dict[str, float]]:
    settings: dict[str, float] = {"save_every_s": LONG_S} | often
    checkpoint, curve = folder / "run.pt", folder / "run.jsonl"
    look: Callable[[], dict[str, float]] = run.look
    stage = Stage(checkpoint, curve, run.take_step, look, log_every=4, **settings)
    keep_training(run, stage, Bar(Progress(disable=True), "a stage"))
    return [json.loads(line) for line in curve.read_text().splitlines()]


def test_a_stage_logs_looks_and_saves_at_its_own_paces(tmp_path: Path) -> None:
    run = Run(total_s=10)

    lines = train(run, tmp_path, look_every_s=4.5, save_every_s=6.5)

    assert [line["step"] for line in lines if "loss" in line] == [4, 8]
    assert [line["step"] for line in lines if "validation" in line] == [5, 10, 10]
    assert run.events == ["look 5", "save 7", "look 10", "look 10", "save 10"]


def test_a_stage_without_looks_has_one_at_the_end(tmp_path: Path) -> None:
    run = Run(total_s=6)

    train(run, tmp_path)

    assert run.events == ["look 6", "save 6"]


def test_a_killed_stage_goes_on_where_it_saved(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(Run(total_s=10, killed_at=9), tmp_path, save_every_s=4.5)
    again = Run(total_s=10)
    again.load(tmp_path / "run.pt")
    assert again.step == 5

    lines = train(again, tmp_path, save_every_s=4.5)

    # The line of step 8 stood already and was dropped: the step was taken again.
    assert [line["step"] for line in lines if "loss" in line] == [4, 8]
    assert again.step == 10
