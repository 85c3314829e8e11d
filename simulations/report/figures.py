"""A run over time and by network, as SVG."""

import io
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulations.report.findings import Findings

_MOST_BINS, _PICTURES = 60, 8  # of time; in one of them, about
_COLOURS = {"wifi": "#1b7f5c", "5g": "#2a62b8", "4g": "#c77612", "satellite": "#9c2f6b"}


def over_time(found: Findings) -> str:
    """Pictures a second and their seconds, with the faults behind."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    bins = int(np.clip(found.tally.made // _PICTURES, 6, _MOST_BINS))
    ends = np.linspace(0, max(found.tally.at_s, 1.0), bins + 1)
    at = np.array([event["at"] for event in found.made])
    took = np.array([event["took_s"] for event in found.made])
    counts, _ = np.histogram(at, ends)
    upper.step(ends[1:], counts / np.diff(ends), where="pre", color="#2a62b8")
    upper.set_ylabel("pictures/s")
    places = np.digitize(at, ends) - 1
    for share, colour in ((0.5, "#1b7f5c"), (0.95, "#c77612")):
        values = [
            np.quantile(took[places == bin_], share) if (places == bin_).any() else np.nan
            for bin_ in range(bins)
        ]
        lower.plot(
            (ends[1:] + ends[:-1]) / 2, values, ".-", color=colour, label=f"p{share * 100:g}"
        )
    lower.set_ylabel("seconds of a picture")
    lower.set_xlabel("seconds since the beginning")
    lower.set_ylim(bottom=0)
    lower.legend(frameon=False)
    _shade(upper, found, named=True)
    _shade(lower, found, named=False)
    return _svg(figure)


def by_network(found: Findings) -> str:
    """How many pictures took at most so long, for each network."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, tally in found.by_link.items():
        times = np.sort(tally.took_s)
        shares = np.arange(1, len(times) + 1) / len(times)
        axes.step(times, shares, where="post", label=name, color=_COLOURS.get(name))
    axes.set_xscale("log")
    axes.set_xlabel("seconds of a picture")
    axes.set_ylabel("share of pictures")
    if found.by_link:
        axes.legend(frameon=False)
    return _svg(figure)


def _shade(axes: Axes, found: Findings, *, named: bool) -> None:
    quiet: dict[str, Any] = {"fontsize": 6, "rotation": 90, "va": "top", "color": "#803030"}
    for kind, begin, end in found.fault_spans:
        axes.axvspan(begin, end, color="#b03030", alpha=0.12, lw=0)
        if named:
            axes.annotate(kind, (begin, 1), xycoords=("data", "axes fraction"), **quiet)


def _svg(figure: Figure) -> str:
    """The figure as an element of a page, the same bytes for the same run."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "ciar-fleet", "svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
