"""What a person sees while the demonstration runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from edge_agent.answer import Made, Step
from simulations.demonstration.plan import DevicePlan


@dataclass(slots=True)
class Screen:
    """A line a device, and a line above for each finished picture."""

    console: Console
    progress: Progress
    lines: dict[str, TaskID]

    def say(self, sentence: str) -> None:
        """Print a sentence above the bars."""
        self.console.print(sentence, soft_wrap=True)

    def show(self, plan: DevicePlan, index: int, step: Step) -> None:
        """A device is at `step` of its picture `index`."""
        share = step.settled / step.tokens if step.tokens else 0.0
        local = step.local / step.settled if step.settled else 0.0
        self.progress.update(
            self.lines[plan.node],
            completed=index + share,
            caption=plan.orders[index][0],
            figures=f"{local:4.0%} local  {step.round_trips:3} round trips"
            + (f"  [yellow]{step.trouble}[/]" if step.trouble else ""),
        )

    def finished(self, plan: DevicePlan, index: int, made: Made) -> None:
        """A device has finished its picture `index`."""
        self.progress.update(self.lines[plan.node], completed=index + 1)
        cloud = made.forwards / made.tokens
        self.say(
            f"  [green]✓[/] {made.caption:<44} {plan.node:<15} {made.duration_s:5.1f} s"
            f"  {made.local_share:4.0%} local  {cloud:4.0%} cloud  {made.corrected:3} corrected"
        )


@contextmanager
def screen(devices: tuple[DevicePlan, ...]) -> Iterator[Screen]:
    """Live bars on a terminal, plain lines elsewhere."""
    console = Console(highlight=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<15}"),
        TextColumn("{task.fields[caption]:<44}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        lines = {
            plan.node: progress.add_task(
                plan.node, total=len(plan.orders), caption="starting", figures=""
            )
            for plan in devices
        }
        yield Screen(console, progress, lines)
