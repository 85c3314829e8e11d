"""Figures of a log: a picture's scores on its grid, and how often both agree by score."""

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from fleet.definitions import wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 12
_MARKS = {"corrected": "x", "verified": "."}


def heat_map(tokens: pl.DataFrame) -> "Figure":
    """One picture's scores (log scale) on its grid; dots were verified, crosses corrected.

    Args:
        tokens: `Log.tokens` of one picture.
    """
    from matplotlib.figure import Figure

    side = max(1, math.isqrt(max(len(tokens), 1) - 1) + 1)
    grid = np.full(side * side, np.nan)
    grid[tokens["position"].to_numpy()] = np.log10(tokens["score"].to_numpy())
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    drawn = axes.imshow(grid.reshape(side, side), cmap="cividis")
    for decision, mark in _MARKS.items():
        at = tokens.filter(pl.col("decision") == decision)["position"].to_numpy()
        axes.scatter(at % side, at // side, marker=mark, color="white", s=18, label=decision)
    axes.set(xticks=[], yticks=[], title="score of each token")
    figure.colorbar(drawn, label="log10 score")
    if len(tokens):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, labelcolor="black")
    return figure


def reliability_diagram(checks: pl.DataFrame) -> "Figure":
    """Match rate by score with Wilson's 95% interval: accepted alone, and judged by the cloud.

    Args:
        checks: `Log.checks`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    scores = np.maximum(checks["score"].to_numpy(), 1e-12)
    low, high = (scores.min(), scores.max()) if len(scores) else (1e-12, 1.0)
    edges = np.geomspace(low, high * 1.001, _BINS + 1)
    for local, label in ((True, "accepted alone"), (False, "judged by the cloud")):
        part = checks.filter(pl.col("local") == local)
        bins = np.digitize(np.maximum(part["score"].to_numpy(), 1e-12), edges) - 1
        centres, rates, spans = [], [], []
        for index in range(_BINS):
            found = part["match"].to_numpy()[bins == index]
            if len(found):
                below, above = wilson(int(found.sum()), len(found))
                rate = float(found.mean())
                centres.append(math.sqrt(edges[index] * edges[index + 1]))
                rates.append(rate)
                spans.append((rate - below, above - rate))
        if centres:
            error = np.abs(np.array(spans).T)
            axes.errorbar(centres, rates, yerr=error, marker="o", capsize=2, label=label)
    if len(checks):
        axes.legend()
    axes.set(xscale="log", ylim=(0, 1.02), xlabel="score of the device", ylabel="match rate")
    return figure
