"""Runs and rounds as lines for people, and as fields for programs; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from cloud_hub.store.rounds import Ended, Run
from cloud_hub.store.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Told:
    """What a run waits for, by the nodes' names."""

    number: int
    phase: str
    asked: int
    awaited: tuple[str, ...]
    until: datetime


def run_lines(runs: Sequence[Run]) -> Iterator[str]:
    """One line a run."""
    if not runs:
        yield "there was no run yet: `cloud_hub rounds start` begins one"
        return
    width = max(len(run.run_id) for run in runs)
    yield f"{'run':<{width}}  {'state':<11}  rounds  kept  began"
    for run in runs:
        done = f"{run.rounds}/{run.plan['rounds']}"
        began = f"{run.created_at:%Y-%m-%d %H:%M}"
        yield f"{run.run_id:<{width}}  {_state(run):<11}  {done:>6}  {run.kept:>4}  {began}"


def run_page(run: Run, rounds: Sequence[Ended], now: datetime) -> Iterator[str]:
    """All about one run."""
    why = f": {run.reason}" if run.reason else ""
    yield f"{run.run_id}, started {run.started_by}, is {_state(run)}{why}"
    yield (
        f"  trains head {run.head_version} of device {run.base_version} by"
        f" {run.plan['strategy']}, {run.rounds} of {run.plan['rounds']} rounds done"
    )
    if run.progress and run.holder:
        told = Told(**{**run.progress, "until": datetime.fromisoformat(run.progress["until"])})
        left = max((told.until - now).total_seconds(), 0.0)
        yield f"  {told_line(told)}, {left:.0f} s left"
    for each in rounds:
        yield from _round(each)


def schedule_lines(schedules: Sequence[Schedule]) -> Iterator[str]:
    """One line a schedule, and one on its last time."""
    if not schedules:
        yield "there is no schedule: `cloud_hub rounds schedule add` makes one"
    for each in schedules:
        limit = f" {each.limit:g}" if each.limit else ""
        due = f"{each.next_at:%Y-%m-%d %H:%M} UTC" if each.next_at else "never"
        yield f"{each.name}: on {each.kind}{limit}, at {each.timing}, next {due}"
        if each.told:
            yield f"  {each.told}"


def told_line(told: Told) -> str:
    """Who is awaited, and until when."""
    if not told.awaited:
        return f"round {told.number} {told.phase}: all {told.asked} have answered"
    names = ", ".join(told.awaited[:5]) + (" and others" if len(told.awaited) > 5 else "")
    answered = told.asked - len(told.awaited)
    return (
        f"round {told.number} {told.phase}: {answered} of {told.asked} have answered,"
        f" awaits {names} until {told.until.astimezone(UTC):%H:%M:%S} UTC"
    )


def run_fields(run: Run) -> dict[str, Any]:
    """A run as JSON."""
    fields = {**asdict(run), "state": _state(run)}
    fields |= {name: _iso(fields[name]) for name in ("created_at", "ended_at")}
    return fields


def round_fields(ended: Ended) -> dict[str, Any]:
    """A round as JSON."""
    nodes = [{**asdict(part), "node": name} for name, part in ended.nodes]
    return {**asdict(ended), "opened_at": _iso(ended.opened_at), "nodes": nodes}


def _round(ended: Ended) -> Iterator[str]:
    if ended.outcome == "open":
        yield f"  round {ended.number} is open since {ended.opened_at:%H:%M:%S} UTC"
        return
    figures = ended.figures
    loss = ""
    if "loss_before" in figures:
        loss = f", loss {figures['loss_before']:.4f} -> {figures['loss_after']:.4f}"
    reason = f" ({ended.reason})" if ended.reason else ""
    yield f"  round {ended.number} {ended.outcome}{loss} in {ended.duration_s:.1f} s{reason}"
    for name, part in ended.nodes:
        note = f"  {part.reason}" if part.reason else ""
        amount = f"{part.bytes_down / 1000:.1f} kB down, {part.bytes_up / 1000:.1f} kB up"
        yield f"    {name:<24}  {part.part:<9}  {part.examples:>6} samples  {amount}{note}"


def _state(run: Run) -> str:
    return "interrupted" if run.is_interrupted else run.state


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
