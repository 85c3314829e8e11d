"""The figures of each device under each condition, and what of a fall was restored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.models.head_weights import HeadWeights
from simulations.drift.order import CONDITIONS, LEARNED, Arm, Condition
from simulations.drift.seen import Floats, Mask, Seen, States, look_again
from simulations.evaluation.sampling_rule import SamplingRule

WORST = 0.1  # the share of devices that "the worst" means


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """One device under one condition; shares of the drafts after the prefix.

    Attributes:
        acceptance: Of the drafts that the cloud was asked about, those that stood.
        asked: Of all drafts, those that the cloud was asked about.
        kept_match: Of the drafts kept without asking, those that the cloud would have drawn.
        safe: Of all drafts, those kept without asking that the cloud would have drawn.
        match: Of all drafts, those that the cloud draws.
        tv: The total variation of both laws where the cloud was asked.
        covered: Of the cloud's law, what lies within the intervals.
        same_match: As `match`, at the positions of the drifted fleet's own questions.
        same_tv: As `tv`, there.
    """

    arm: Arm
    condition: Condition
    device: int
    taste: str
    pictures: int
    acceptance: float
    asked: float
    kept_match: float
    safe: float
    match: float
    tv: float
    covered: float
    same_match: float
    same_tv: float


def device_figures(
    arm: Arm, condition: Condition, device: int, taste: str, seen: Seen, same: tuple[float, float]
) -> DeviceFigures:
    """The figures of a device's pictures; `same`: match and TV at the drifted fleet's questions."""
    kept = ~seen.asked
    return DeviceFigures(
        arm=arm,
        condition=condition,
        device=device,
        taste=taste,
        pictures=len(seen.asked),
        acceptance=_mean(seen.match, seen.asked),
        asked=float(seen.asked.mean()),
        kept_match=_mean(seen.match, kept),
        safe=float((kept & seen.match).mean()),
        match=float(seen.match.mean()),
        tv=_mean(seen.tv, seen.asked),
        covered=float(seen.covered.mean()),
        same_match=same[0],
        same_tv=same[1],
    )


def at_same_questions(
    asked: Mask, states: States, head: HeadWeights, sampling: SamplingRule
) -> tuple[float, float]:
    """Match and TV of a head where the drifted fleet asked, along that fleet's pictures."""
    match, distance, _ = look_again(states, head, sampling)
    return _mean(match, asked), _mean(distance, asked)


@dataclass(frozen=True, slots=True)
class Line:
    """A condition of an arm: means over devices, and the match against no rounds.

    Attributes:
        worst: Mean match of the tenth of the devices with the lowest one.
        gain: Of the match over no rounds, mean over the devices.
        gain_error: The standard error of that mean.
        restored: Gain over what the drift took; NaN where that is within two of its errors.
        worst_restored: The same of the worst tenth.
    """

    arm: Arm
    condition: Condition
    means: Mapping[str, float]
    worst: float
    gain: float
    gain_error: float
    restored: float
    worst_restored: float


def lines(rows: Sequence[DeviceFigures], arm: Arm) -> list[Line]:
    """One line a condition, in their order.

    What counts is the match of all drafts. Of the asked ones alone more may stand after a drift,
    since a device that has become unsure asks about easier drafts too.
    """
    by = {c: [r for r in rows if (r.arm, r.condition) == (arm, c)] for c in CONDITIONS}
    drifted = _of(by["no rounds"], "match")
    lost = _of(by["before"], "match") - drifted
    fall = float(lost.mean()) if lost.mean() > 2 * _error(lost) else np.nan
    worst_fall = _worst(_of(by["before"], "match")) - _worst(drifted)
    found = []
    for condition, mine in by.items():
        match = _of(mine, "match")
        gain = match - drifted
        learned = condition in LEARNED
        found.append(
            Line(
                arm=arm,
                condition=condition,
                means={n: float(_of(mine, n).mean()) for n in NAMES},
                worst=_worst(match),
                gain=float(gain.mean()),
                gain_error=_error(gain),
                restored=float(gain.mean()) / fall if learned else np.nan,
                worst_restored=(_worst(match) - _worst(drifted)) / worst_fall
                if learned and worst_fall > 0
                else np.nan,
            )
        )
    return found


NAMES = tuple(DeviceFigures.__slots__[5:])


def _of(rows: Sequence[DeviceFigures], name: str) -> NDArray[np.float64]:
    return np.array([getattr(row, name) for row in sorted(rows, key=lambda row: row.device)])


def _worst(values: NDArray[np.float64]) -> float:
    count = max(int(np.ceil(WORST * len(values))), 1)
    return float(np.sort(values)[:count].mean())


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.inf


def _mean(values: Mask | Floats, where: Mask) -> float:
    return float(values[where].mean()) if where.any() else np.nan
