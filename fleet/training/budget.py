"""How a training run spends its minutes: elapsed-time schedule, curve on disk, progress bar."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

# A clock that jumps (a suspended machine) must not eat the budget.
_LONGEST_STEP_S = 120.0


@dataclass
class Budget:
    """A wall-clock budget that survives restarts: only time spent training counts."""

    total_s: float
    used_s: float = 0.0
    _last: float = field(default_factory=time.monotonic)

    def tick(self, now: float | None = None) -> float:
        """Count the time since the last tick and return the fraction spent, at most 1."""
        now = time.monotonic() if now is None else now
        self.used_s += min(max(now - self._last, 0.0), _LONGEST_STEP_S)
        self._last = now
        return self.fraction

    @property
    def fraction(self) -> float:
        """Return the share of the budget that is spent, at most 1."""
        return min(self.used_s / self.total_s, 1.0) if self.total_s > 0 else 1.0


def learning_rate_factor(fraction: float, warm_up: float = 0.01, decay_from: float = 0.0) -> float:
    """Return the factor of the peak rate: linear up, flat until `decay_from`, linear to zero."""
    if fraction < warm_up:
        return max(fraction / warm_up, 0.02)
    start = max(decay_from, warm_up)
    return 1.0 if fraction < start else max((1.0 - fraction) / (1.0 - start), 0.0)


class Curve:
    """A file of JSON lines, one a measurement, that a resumed run goes on with."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rewind(self, step: int) -> None:
        """Drop what came after `step`, for a run that takes those steps again."""
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["step"] <= step]
            self._path.write_text("".join(kept), encoding="utf-8")

    def append(self, **values: float | int | str) -> None:
        """Write one line; floats keep five significant digits."""
        kept = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in values.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(kept) + "\n")


class Bar:
    """A progress bar over the fraction of the budget, with one line of figures."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=1.0, figures="")

    def show(self, fraction: float, figures: str) -> None:
        """Move the bar and replace its figures."""
        self._progress.update(self._task, completed=fraction, figures=figures)


@contextmanager
def progress_bar(title: str) -> Iterator[Bar]:
    """Show a bar while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns) as progress:
        yield Bar(progress, title)
