"""Rollouts as lines for people, and as fields for programs; pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from cloud_hub.store.rollouts import NodeStep, Rollout


def lines(rollouts: Sequence[Rollout]) -> Iterator[str]:
    """One line a rollout."""
    if not rollouts:
        yield "there was no rollout yet: `cloud_hub rollout start VERSION` begins one"
        return
    width = max(len(each.rollout_id) for each in rollouts)
    yield f"{'rollout':<{width}}  {'version':<16}  {'state':<14}  began"
    for each in rollouts:
        began = f"{each.started_at:%Y-%m-%d %H:%M}"
        yield f"{each.rollout_id:<{width}}  {each.version:<16}  {_state(each):<14}  {began}"


def page(rollout: Rollout, nodes: Mapping[str, NodeStep], awaited: str) -> Iterator[str]:
    """All about one rollout; `awaited`: what is known so far, while its canaries are watched."""
    plan = rollout.plan
    why = f": {rollout.reason}" if rollout.reason else ""
    yield f"{rollout.rollout_id}, started {plan['started_by']}, is {_state(rollout)}{why}"
    yield f"  version {rollout.version} from {plan['source']}, first on {len(plan['canaries'])}"
    if awaited:
        until = rollout.started_at + timedelta(seconds=plan["wait_s"])
        yield f"  {awaited}; it goes back if that is not enough by {until:%Y-%m-%d %H:%M} UTC"
    for node, step in nodes.items():
        part = "canary" if step.stage == 0 else "other"
        reason = f"  {step.reason}" if step.reason else ""
        moment = f"{step.changed_at:%H:%M:%S}"
        yield f"    {node:<24}  {part:<6}  {step.state:<11}  {moment}{reason}"


def fields_of(rollout: Rollout) -> dict[str, Any]:
    """A rollout as JSON."""
    fields = {**asdict(rollout), "state": _state(rollout)}
    for name in ("started_at", "ended_at"):
        fields[name] = None if fields[name] is None else fields[name].isoformat()
    return fields


def step_fields(step: NodeStep) -> dict[str, Any]:
    """Where a node stands, as JSON."""
    return {**asdict(step), "changed_at": step.changed_at.isoformat()}


def _state(rollout: Rollout) -> str:
    return "unattended" if rollout.is_open and not rollout.holder else rollout.state
