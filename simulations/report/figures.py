"""A run over time and by network, as SVG."""

import io
import re

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulations.report.findings import Findings

_MOST_BINS, _PICTURES = 60, 8  # of time; in one of them, about
_FAULT = "#b03030"
_COLOURS = {"wifi": "#1b7f5c", "5g": "#2a62b8", "4g": "#c77612", "satellite": "#9c2f6b"}


def over_time(found: Findings) -> str:
    """Pictures a second and their seconds, under the faults."""
    kinds = list(dict.fromkeys(kind for kind, _, _ in found.fault_spans))
    lane = 0.18 * len(kinds) + 0.1 * bool(kinds)  # inches
    figure = Figure(figsize=(9, 4.4 + lane), layout="constrained")
    heights = [lane or 0.01, 2.2, 2.2]
    strip, upper, lower = figure.subplots(3, 1, sharex=True, height_ratios=heights)
    end = max(found.tally.at_s, 1.0)
    bins = int(np.clip(found.tally.made // _PICTURES, 6, _MOST_BINS))
    ends = np.linspace(0, end, bins + 1)
    at = np.array([event["at"] for event in found.made])
    took = np.array([event["took_s"] for event in found.made])
    counts, _ = np.histogram(at, ends)
    upper.stairs(counts / np.diff(ends), ends, color="#2a62b8")
    upper.set_ylabel("pictures/s")
    upper.set_ylim(bottom=0)
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
    lower.set_xlim(0, end)
    lower.set_ylim(bottom=0)
    lower.legend(frameon=False)
    _name(strip, found, kinds)
    for axes in (upper, lower):
        for _, begin, over in found.fault_spans:
            axes.axvspan(begin, over, color=_FAULT, alpha=0.1, lw=0)
    return _svg(figure, "time")


def by_network(found: Findings) -> str:
    """How many pictures took at most so long, for each network."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, tally in found.by_link.items():
        times = np.sort(tally.took_s)
        shares = np.arange(1, len(times) + 1) / len(times)
        axes.step(times, shares, where="post", label=name, color=_COLOURS.get(name))
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(_plain)
    axes.set_xlabel("seconds of a picture")
    axes.set_ylabel("share of pictures")
    axes.set_ylim(0, 1.02)
    if found.by_link:
        axes.legend(frameon=False)
    return _svg(figure, "network")


def _name(strip: Axes, found: Findings, kinds: list[str]) -> None:
    """Each kind of fault in a line of its own, by its name."""
    for kind, begin, over in found.fault_spans:
        strip.barh(kinds.index(kind), over - begin, left=begin, height=0.6, color=_FAULT, alpha=0.6)
    strip.set_yticks(range(len(kinds)), kinds, fontsize=8)
    strip.set_ylim(len(kinds) - 0.5, -0.5)
    strip.tick_params(length=0, labelbottom=False)
    strip.set_frame_on(False)


def _plain(value: float, _: float) -> str:
    """Seconds as people write them; of a decade 1, 2 and 5."""
    return f"{value:g}" if f"{value:e}"[0] in "125" else ""


def _svg(figure: Figure, name: str) -> str:
    """The figure as an element of a page, the same bytes for the same run."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "ciar-fleet", "svg.fonttype": "none"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return _numbered(text[text.index("<svg") :], name)


def _numbered(svg: str, figure: str) -> str:
    """The picture with its clip paths counted: matplotlib may name them by addresses in memory."""
    names = re.findall(r'<clipPath id="(\w+)"', svg)
    for number, name in enumerate(names):
        svg = svg.replace(f'id="{name}"', f'id="{figure}-{number}"')
        svg = svg.replace(f"url(#{name})", f"url(#{figure}-{number})")
    return svg
