"""Questions about many pictures, answered from the sums; docs/metrics.md defines the numbers.

A period begins with the hour (or, where that is days ago, the day) that `since` lies in, hub time.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from cloud_hub.store.groups import group_buckets, grouped
from cloud_hub.store.histograms import METRICS
from cloud_hub.store.periods import Period
from cloud_hub.store.sums import columns
from cloud_hub.store.tables import CheckSumRow, ScoreSumRow, SumRow
from fleet.buckets import SCORE_BINS, SCORE_CODES_A_BIN, value_of
from fleet.definitions import (
    QUANTILES,
    RATIOS,
    Accepted,
    accepted,
    calibration_error,
    stability_index,
)
from fleet.protocol.arrays import unpack_scores

REFERENCE = timedelta(days=7)

_IN_ORDER = sorted(range(len(METRICS)), key=METRICS.__getitem__)
_BINS = range(SCORE_BINS)


@dataclass(frozen=True, slots=True)
class Answer:
    """A table: names, and one tuple a row in their order."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """One dictionary a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(connection: Connection, question: str, by: Sequence[str], period: Period) -> Answer:
    """The answer to the question of that name; drift is against the week before the period.

    Raises:
        InvalidInputError: A group is not one that the question knows.
    """
    if question == "drift":
        begins = period.since
        before = Period(begins - REFERENCE if begins else None, begins)
        return drift(connection, by, period, before)
    return QUESTIONS[question](connection, by, period)


def acceptance(connection: Connection, by: Sequence[str], period: Period) -> Answer:
    """Pictures, tokens and every ratio of `definitions.RATIOS`, by groups."""
    names = columns(SumRow)
    rows = []
    for *group, found in grouped(connection, SumRow, by, period, names):
        rows.append(
            (*group, int(found["pictures"]), int(found["tokens"]), *(r.of(found) for r in RATIOS))
        )
    return Answer((*by, "pictures", "tokens", *(ratio.name for ratio in RATIOS)), rows)


def latency(connection: Connection, by: Sequence[str], period: Period) -> Answer:
    """Quantiles of each metric by groups, each within `buckets.ALPHA` of the value of its rank."""
    rows: list[tuple[Any, ...]] = []
    for key, buckets, counts in group_buckets(connection, by, period, METRICS):
        reached = counts.cumsum(axis=0)  # [buckets, metrics]
        totals = reached[-1]
        # As `buckets.quantile`, of all metrics at once.
        at = [buckets[(reached >= q * totals - 1e-9).argmax(axis=0)].tolist() for q in QUANTILES]
        for place in _IN_ORDER:
            total = int(totals[place])
            values = (value_of(found[place]) if total else None for found in at)
            rows.append((*key, METRICS[place], total, *values))
    return Answer((*by, "metric", "pictures", *(f"p{q * 100:g}" for q in QUANTILES)), rows)


def spot_checks(connection: Connection, by: Sequence[str], period: Period) -> Answer:
    """What checks say of tokens that devices accepted alone, by groups (`fleet/definitions.py`)."""
    rows = []
    for *group, found in grouped(connection, CheckSumRow, by, period, columns(CheckSumRow)):
        rates = accepted(int(found["checked"]), int(found["mismatched"]), found["harm"])
        rows.append((*_shown(by, group), *astuple(rates)))
    return Answer((*by, *(each.name for each in fields(Accepted))), rows)


def reliability(connection: Connection, by: Sequence[str], period: Period) -> Answer:
    """Match rate by score: of judged tokens, and of checked ones that the device accepted alone."""
    groups = [*by, "score"]
    judged = grouped(connection, ScoreSumRow, groups, period, columns(ScoreSumRow))
    checked = {
        tuple(group): found
        for *group, found in grouped(connection, CheckSumRow, groups, period, columns(CheckSumRow))
    }
    rows = []
    for *group, found in judged:
        check = checked.get(tuple(group), {"checked": 0, "mismatched": 0})
        seen, stood = int(found["verified"]), int(found["verified"] - found["corrected"])
        alone, same = int(check["checked"]), int(check["checked"] - check["mismatched"])
        rows.append(
            (
                *_shown(groups, group),
                int(found["local"]),
                seen,
                _share(stood, seen),
                alone,
                _share(same, alone),
            )
        )
    return Answer((*groups, "local", "judged", "match_rate", "checked", "checked_match_rate"), rows)


def drift(connection: Connection, by: Sequence[str], period: Period, reference: Period) -> Answer:
    """How far scores, and what they say, are off a reference period of the same groups.

    `stability_index` is of the histogram of the scores, `calibration_error` of the match rate by
    score; both in `definitions.py`.
    """
    now, before = (_by_bin(connection, by, each) for each in (period, reference))
    rows = []
    for group, found in now.items():
        known = before.get(group, {})
        counts = [[int(side.get(b, _NOTHING)["tokens"]) for b in _BINS] for side in (found, known)]
        judged = [
            [
                (int(side.get(b, _NOTHING)["judged"]), int(side.get(b, _NOTHING)["stood"]))
                for b in _BINS
            ]
            for side in (found, known)
        ]
        rows.append(
            (
                *group,
                sum(counts[0]),
                sum(counts[1]),
                stability_index(*counts),
                calibration_error(*judged),
            )
        )
    return Answer((*by, "tokens", "reference_tokens", "stability_index", "calibration_error"), rows)


QUESTIONS: dict[str, Callable[[Connection, Sequence[str], Period], Answer]] = {
    "acceptance": acceptance,
    "latency": latency,
    "spot_checks": spot_checks,
    "reliability": reliability,
}
_NOTHING = {"tokens": 0.0, "judged": 0.0, "stood": 0.0}


def _by_bin(
    connection: Connection, by: Sequence[str], period: Period
) -> dict[tuple[Any, ...], dict[int, dict[str, float]]]:
    found: defaultdict[tuple[Any, ...], dict[int, dict[str, float]]] = defaultdict(dict)
    rows = grouped(connection, ScoreSumRow, [*by, "score"], period, columns(ScoreSumRow))
    for *group, score_bin, sums in rows:
        found[tuple(group)][score_bin] = {
            "tokens": sums["local"] + sums["verified"] + sums["unverified"],
            "judged": sums["verified"],
            "stood": sums["verified"] - sums["corrected"],
        }
    return found


def score_range(score_bin: int) -> str:
    """The scores of a bin, in words."""
    first = score_bin * SCORE_CODES_A_BIN
    low, high = unpack_scores(bytes([first, first + SCORE_CODES_A_BIN - 1]))
    return f"{low:.2g}-{high:.2g}"


def _shown(by: Sequence[str], group: Sequence[Any]) -> list[Any]:
    """Group keys as people read them: a score's bin as its range."""
    return [
        score_range(key) if name == "score" else key for name, key in zip(by, group, strict=True)
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
