"""What a person sees in the terminal: a bar while a picture is made, and lines about it."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from edge_agent.answer import Glimpse, Made, Step, glimpse_of, step_of
from edge_agent.generate import Preview
from edge_agent.generate import Progress as PictureProgress

TROUBLE = {
    "": "",
    "no_broker": "waiting for the broker",
    "timeout": "waiting for the cloud",
    "busy": "the hub is busy",
    "refused": "the hub refuses",
    "cancelled": "cancelled",
}


MOST_LINES = 24  # of a preview


class _Window(Progress):
    """A progress bar with a picture above it, once there is one."""

    picture: RenderableType | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """The picture so far, then the bar."""
        if self.picture is not None:
            yield self.picture
        yield from super().get_renderables()


class Bar:
    """The progress bar of one picture; also a `Report` for an agent in the same process."""

    def __init__(self, progress: "_Window", task: TaskID) -> None:
        self.shows_pictures = not progress.disable and progress.console.color_system == "truecolor"
        self._progress = progress
        self._task = task

    def __call__(self, step: Step) -> None:
        """Shows a step."""
        self._progress.update(
            self._task,
            total=step.tokens or None,
            completed=step.settled,
            detail=_detail(step),
        )

    def queued(self, ahead: int) -> None:
        """Shows that others come first."""
        self(Step(state="queued", ahead=ahead))

    def progress(self, progress: PictureProgress) -> None:
        """Shows how far the picture is."""
        self(step_of(progress))

    def preview(self, preview: Preview) -> None:
        """Shows the picture so far."""
        self.glimpse(glimpse_of(preview))

    def glimpse(self, glimpse: Glimpse) -> None:
        """Shows the picture so far."""
        self._progress.picture = half_blocks(glimpse.image, MOST_LINES)
        self._progress.refresh()


def half_blocks(image: NDArray[np.uint8], lines: int) -> Text:
    """A picture [side, side, 3] as at most `lines` lines of text, two pixels a character."""
    step = -(-image.shape[0] // (2 * lines))
    small = image[::step, ::step]
    text = Text()
    for upper, lower in zip(small[::2], small[1::2], strict=False):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", f"{_colour(above)} on {_colour(below)}")
        text.append("\n")
    return text


def _colour(pixel: NDArray[np.uint8]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*pixel)


@contextmanager
def progress_bar(caption: str, *, shown: bool) -> Iterator[Bar]:
    """A bar on stderr, which disappears when the picture is done."""
    console = Console(stderr=True)
    progress = _Window(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not shown or not console.is_terminal,
    )
    with progress:
        task = progress.add_task(caption[:40], total=None, detail="starting")
        yield Bar(progress, task)


def _detail(step: Step) -> str:
    if step.state == "queued":
        return f"{step.ahead} picture{'s' if step.ahead > 1 else ''} first"
    if not step.settled:
        return TROUBLE[step.trouble] or "asking the cloud"
    share = step.local / step.settled
    parts = [
        f"{step.settled}/{step.tokens} tokens",
        f"{share:.0%} local",
        f"{step.round_trips} round trip{'s' if step.round_trips != 1 else ''}",
    ]
    if step.trouble:
        parts.append(TROUBLE[step.trouble])
    return " · ".join(parts)


def summary(made: Made, where: str) -> str:
    """A finished picture in two lines."""
    cloud = made.verified - made.corrected
    parts = [f"{made.local_share:.0%} of {made.tokens} tokens local"]
    if made.prefix:
        parts.append(f"{made.prefix} prefix")
    if made.verified:
        parts.append(f"{cloud} verified, {made.corrected} corrected")
    if made.unverified:
        parts.append(f"{made.unverified} unverified")
    if made.round_trips:
        parts.append(f"{made.round_trips} round trips")
        parts.append(f"{made.bytes_up / 1e3:.1f} kB up, {made.bytes_down / 1e3:.1f} kB down")
    parts.append(f"{made.duration_s:.2f} s")
    return f"{where}  {made.caption}, seed {made.seed}\n{' · '.join(parts)}"


def status_lines(status: dict[str, Any]) -> str:
    """An agent's status in a few lines."""
    now = time.time()
    broker, hub = status["broker"], status["hub"]
    link = "connected" if broker["is_up"] else "NOT connected"
    lines = [
        f"agent     {status['node']}, version {status['agent_version']}, process {status['pid']}",
        f"bundle    {status['family']} {status['device_version']}",
        f"broker    {broker['address']}: {link} for {_ago(now - broker['since'])}",
        f"hub       {_hub(hub, now)}",
        f"pictures  {status['pictures']} made, {_at_work(status)}",
        f"outbox    {_spool(status)}",
    ]
    if status["pictures_to_correct"]:
        lines.append(f"shelf     {status['pictures_to_correct']} pictures wait to be corrected")
    if status["advice"]:
        lines.append(f"to do     {status['advice']}")
    return "\n".join(lines)


def shelf_lines(pictures: Sequence[dict[str, Any]]) -> str:
    """Pictures on the shelf, one a line."""
    if not pictures:
        return "no picture waits to be corrected"
    now = time.time()
    return "\n".join(
        f"{each['generation_id']}  {each['state'].replace('_', ' ')} for"
        f" {_ago(now - each['since'])}  {each['caption']}, seed {each['seed']}"
        f"{'  ' + each['detail'] if each['detail'] else ''}"
        for each in pictures
    )


def _hub(hub: dict[str, Any], now: float) -> str:
    if not hub["is_up"]:
        return f"not there for {_ago(now - hub['since'])}"
    return f"{hub['worker']}, cloud model {hub['cloud_version']}, up for {_ago(now - hub['since'])}"


def _at_work(status: dict[str, Any]) -> str:
    if not status["is_working"]:
        return "none in the making"
    return f"one in the making, {status['waiting']} waiting"


def _spool(status: dict[str, Any]) -> str:
    parts = [f"{status['outbox_records']} records wait for the hub's receipt"]
    if status["outbox_stripped"]:
        parts.append(f"{status['outbox_stripped']} lost their per-token arrays for want of room")
    if status["outbox_lost"]:
        parts.append(f"{status['outbox_lost']} were dropped for want of room")
    return "; ".join(parts)


def _ago(seconds: float) -> str:
    return str(timedelta(seconds=max(0, round(seconds))))
