"""The search for a sampling rule."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulations.evaluation.captions import Assignment
from simulations.evaluation.methods import Method
from simulations.evaluation.search import search

REAL = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)


class Drawer:
    """Stands for the studio: the nearer a temperature to `best`, the nearer its pictures."""

    def __init__(self, best: float) -> None:
        self.best = best
        self.tried: list[float] = []

    def draw(self, plan: Sequence[tuple[Method, int]], _: Assignment) -> list[Any]:
        self.tried += [method.sampling.temperature for method, _ in plan]
        return [SimpleNamespace(features=REAL + self.off(method)) for method, _ in plan]

    def off(self, method: Method) -> float:
        rule = method.sampling
        return abs(math.log(rule.temperature / self.best)) + rule.guidance - 1 + bool(rule.top_k)


@pytest.mark.parametrize(
    ("best", "lower"), [(0.6, []), (0.2, [0.1]), (0.1, [0.1, 0.05]), (0.04, [0.1, 0.05])]
)
def test_a_best_at_the_lowest_temperature_has_lower_ones_tried(
    best: float, lower: list[float]
) -> None:
    drawer = Drawer(best)
    captions = Assignment(np.arange(40), ["a"] * 40, np.zeros(40, bool))

    table = search(drawer, "cloud", captions, REAL)  # type: ignore[arg-type]

    assert table[0][0].temperature == pytest.approx(max(best, 0.05))
    assert list(dict.fromkeys(t for t in drawer.tried if t < 0.2)) == lower
