"""Whether a schedule's condition holds, and the sentence that says so; pure."""

from dataclasses import dataclass

from cloud_hub.store.schedule import Facts, Kind
from fleet.ids import ModelVersion

LEAST_JUDGED = 1000  # tokens, in either span, below which a drift is noise
LIMITS: dict[Kind, float] = {"cron": 0.0, "drift": 0.02, "cloud": 0.0, "samples": 10_000.0}


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a run shall begin, and why or why not."""

    holds: bool
    why: str


@dataclass(frozen=True, slots=True)
class Serving:
    """What the hub serves: its cloud model, and the share of laws that it tells devices."""

    cloud_version: ModelVersion
    law_share: float


def look(kind: Kind, limit: float, facts: Facts, serving: Serving) -> Finding:
    """Whether a condition holds.

    Args:
        kind: See `Schedule`.
        limit: Of "drift", the fall of the acceptance; of "samples", their number.
        facts: What the database says now.
        serving: What the hub serves now.
    """
    match kind:
        case "cron":
            return Finding(True, "it is time")
        case "drift":
            return _drift(limit, facts)
        case "cloud":
            known = serving.cloud_version in facts.clouds
            state = "was" if known else "was not yet"
            return Finding(not known, f"cloud model {serving.cloud_version} {state} trained on")
        case "samples":
            fresh = facts.judged_since_run * serving.law_share
            return Finding(fresh >= limit, f"about {fresh:.0f} samples are fresh, of {limit:.0f}")


def _drift(limit: float, facts: Facts) -> Finding:
    day, week = facts.last_day, facts.week_before
    if min(day.judged, week.judged) < LEAST_JUDGED:
        return Finding(False, f"fewer than {LEAST_JUDGED} tokens were judged in a span")
    why = f"acceptance went from {week.acceptance:.1%} to {day.acceptance:.1%} in a day"
    return Finding(week.acceptance - day.acceptance > limit, why)
