"""A line that says how a run is going: live on a terminal, now and then elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic as real_seconds  # a world replaces `time.monotonic`

from rich.console import Console
from rich.live import Live

from simulations.history.tally import Tally

_EVERY_S = 5.0  # of the real clock, where nobody sees the line change
_RECENT = 200  # pictures of which the shown quantiles are


@contextmanager
def progress(console: Console) -> Iterator[Callable[[Tally], None]]:
    """What a run tells how things are, until the context ends."""
    begun = real_seconds()
    # Without refreshing by itself, which would take a thread and its clock.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        said_at = begun

        def show(tally: Tally) -> None:
            nonlocal said_at
            line = _line(tally, real_seconds() - begun)
            if console.is_terminal:
                live.update(line, refresh=True)
            elif real_seconds() - said_at >= _EVERY_S:
                said_at = real_seconds()
                console.print(line)

        yield show


def _line(tally: Tally, real_s: float) -> str:
    recent = (
        f"p50 {tally.latency_s(0.5, _RECENT):.2f} s  p95 {tally.latency_s(0.95, _RECENT):.2f} s"
    )
    return (
        f"{tally.at_s:7.0f} s  {tally.made:6} pictures  {tally.under_way:4} under way"
        f"  {tally.made / max(tally.at_s, 1):6.2f}/s  cloud {tally.cloud_share:.2f}  {recent}"
        f"  {tally.at_s / max(real_s, 1e-3):5.1f} s/s  {' '.join(tally.faults)}"
    )
