"""The comparison as figures."""

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter
from numpy.typing import NDArray

from fleet.prediction import SCORE_NAMES
from simulations.evaluation.intervals import Reliability
from simulations.evaluation.jobs import Sample
from simulations.evaluation.metrics import Estimate
from simulations.evaluation.moment import AMENDED, CORRECTED, LOCAL, PREFIX, VERIFIED

mpl.use("Agg")
from matplotlib import pyplot as plt  # the back end comes first

_DPI = 110
_DECISIONS = {
    PREFIX: "prefix, the cloud's",
    LOCAL: "the device's, kept",
    VERIFIED: "asked, stands",
    CORRECTED: "asked, corrected",
    AMENDED: "amended unasked",
}
_SHOWN = 6  # pictures of a heat map
_ACROSS = 2  # panels beside each other
_ROOM = (26.0, 11.0)  # of a number, in pixels
_STEPS = tuple(round(0.1 * step, 1) for step in (*range(1, 11), *range(12, 21, 2), 30, 50, 100))
_LINES = ("-", "--", ":", "-.")  # each with every color before the next


@dataclass(frozen=True, slots=True)
class Point:
    """A method on the plots: how far from real pictures, and what that takes."""

    name: str
    distance: float  # KD-EffNet
    spread: float
    costs: tuple[float, ...]


def pareto(path: Path, axes: Sequence[str], points: Sequence[Point]) -> None:
    """Distance from real pictures against each cost; the line joins what nothing else beats.

    Points are numbered, from the least distance, since their names would lie on each other.
    """
    rows = math.ceil(len(axes) / _ACROSS)
    size = (6.2 * _ACROSS + 2.2, 4.8 * rows)
    figure, panels = plt.subplots(rows, _ACROSS, figsize=size, sharey=True, squeeze=False)
    ranked = sorted(points, key=lambda point: point.distance)
    if min(point.distance - point.spread for point in points) > 0:
        panels[0][0].set_yscale("log")
        panels[0][0].yaxis.set_major_locator(FixedLocator(_STEPS))
        panels[0][0].yaxis.set_major_formatter("{x:g}")
        panels[0][0].yaxis.set_minor_formatter(NullFormatter())
    for index, (panel, title) in enumerate(zip(panels.flat, axes, strict=False)):
        for number, (point, (color, _)) in enumerate(zip(ranked, _styles(ranked), strict=True), 1):
            panel.errorbar(
                point.costs[index], point.distance, point.spread, fmt="o", ms=4, lw=0.8,
                color=color, ecolor=(color, 0.4), label=f"{number}  {point.name}",
            )  # fmt: skip
        front = pareto_front([(p.costs[index], p.distance) for p in points])
        panel.plot(*zip(*front, strict=True), color="black", lw=0.8, alpha=0.5)
        panel.set_xlabel(title)
        panel.grid(alpha=0.2)
        panel.margins(x=0.08)
    for row in panels:
        row[0].set_ylabel("KD-EffNet (lower is better)")
    panels[0][-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    for index, panel in enumerate(panels.flat[: len(axes)]):
        _number(panel, [(point.costs[index], point.distance) for point in ranked])
    _save(figure, path)


def _number(panel: Axes, places: Sequence[tuple[float, float]]) -> None:
    """Numbers from 1 beside the points, pushed up until none lies on another."""
    taken: list[tuple[float, float]] = []
    for number, place in enumerate(places, 1):
        x, y = panel.transData.transform(place)
        up = y
        while any(abs(x - a) < _ROOM[0] and abs(up - b) < _ROOM[1] for a, b in taken):
            up += 1
        taken.append((x, up))
        line = {"arrowstyle": "-", "lw": 0.4, "alpha": 0.6, "shrinkA": 0, "shrinkB": 2}
        beside = (16, (up - y) * 72 / panel.figure.dpi)
        panel.annotate(str(number), place, beside, textcoords="offset points", fontsize=7,
                       va="center", arrowprops=line)  # fmt: skip


def _styles(things: Collection[object]) -> list[tuple[str, str]]:
    """A color and a kind of line for each thing; no two are alike among the first forty."""
    return [(f"C{index % 10}", _LINES[index // 10 % len(_LINES)]) for index in range(len(things))]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, by the first."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def curves(
    path: Path, x: Sequence[float], panels: dict[str, dict[str, list[float]]], label: str
) -> None:
    """Seconds a picture against the round-trip time, a panel a set of step costs."""
    figure, axes = plt.subplots(1, len(panels), figsize=(6.5 * len(panels), 4.6), squeeze=False)
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for (name, values), (color, dashes) in zip(lines.items(), _styles(lines), strict=True):
            axis.plot(x, values, dashes, marker=".", lw=1.1, color=color, label=name)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("round-trip time, ms")
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.2, which="both")
    axes[0][0].set_ylabel(label)
    axes[0][-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _save(figure, path)


def reliability(path: Path, lines: dict[str, Reliability]) -> None:
    """B against the total variation that it bounds; points below the diagonal keep the bound."""
    figure, axis = plt.subplots(figsize=(4.8, 4.6))
    axis.plot([0, 1], [0, 1], color="black", lw=0.8, alpha=0.5)
    for name, line in lines.items():
        axis.plot(line.bound, line.distance, marker="o", ms=4, lw=1, label=name)
    axis.set_xlabel("B, mean of a tenth of the positions")
    axis.set_ylabel("TV of device and cloud, mean of the same")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.2)
    _save(figure, path)


def why(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, Estimate]]],
    goal: float,
    by_row: Mapping[str, NDArray[np.float64]],
    after: Mapping[str, NDArray[np.float64]],
) -> None:
    """The gap lost against calls; how often the draws differ, by row and after a difference."""
    figure, (lost, rows, later) = plt.subplots(1, 3, figsize=(17, 4.6))
    for index, (name, points) in enumerate(curves.items()):
        x, y = [calls for calls, _ in points], [found.value for _, found in points]
        spread = [found.spread for _, found in points]
        lost.errorbar(x, y, spread, marker="o", ms=4, lw=1, elinewidth=0.6, label=name,
                      color=f"C{index}")  # fmt: skip
    lost.axhline(goal, color="black", lw=0.8, ls="--")
    lost.set_xlabel("cloud calls a token")
    lost.set_ylabel("gap lost")
    for name, values in by_row.items():
        rows.plot(values, marker="o", ms=4, lw=1, label=f"along {name}")
    rows.set_xlabel("row behind the prefix")
    rows.set_ylabel("draws that differ")
    for name, values in after.items():
        later.plot(np.arange(1, len(values) + 1), values, marker="o", ms=4, lw=1, label=name)
    later.set_xlabel("positions after a difference")
    for panel in (lost, rows, later):
        panel.legend(fontsize=8)
        panel.grid(alpha=0.2)
    _save(figure, path)


def heat_maps(path: Path, sample: Sample, captions: Sequence[str]) -> None:
    """Pictures, where each token came from, and every score over the picture."""
    side = round(sample.tokens.shape[1] ** 0.5)
    count = min(_SHOWN, len(sample))
    figure, axes = plt.subplots(
        2 + len(SCORE_NAMES), count, figsize=(1.6 * count + 1, 1.6 * (2 + len(SCORE_NAMES)))
    )
    for column in range(count):
        axes[0][column].imshow(sample.pictures[column])
        axes[0][column].set_title(textwrap.fill(captions[column], 24), fontsize=7)
        decisions = sample.decisions[column].reshape(side, side)
        axes[1][column].imshow(decisions, cmap="tab10", vmin=0, vmax=9)
    for row, name in enumerate(SCORE_NAMES, start=2):
        values = sample.scores[:count, :, row - 2].reshape(count, side, side)
        low, high = _range(values)
        for column in range(count):
            axes[row][column].imshow(values[column], cmap="viridis", vmin=low, vmax=high)
        axes[row][0].set_ylabel(name, fontsize=7)
    axes[0][0].set_ylabel("picture", fontsize=7)
    axes[1][0].set_ylabel("decision", fontsize=7)
    shown = np.unique(sample.decisions[:count])
    kinds = [Patch(color=f"C{code}", label=_DECISIONS[int(code)]) for code in shown]
    axes[1][-1].legend(handles=kinds, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    _save(figure, path)


def _range(values: NDArray[np.floating]) -> tuple[float, float]:
    seen = values[np.isfinite(values)]
    if not len(seen):
        return 0.0, 1.0
    low, high = np.quantile(seen, (0.02, 0.98))
    return float(low), float(high)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
