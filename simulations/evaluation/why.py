"""Why ours loses what it loses: its pictures with more calls, and with oracles in its place."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.accept import device_only as never_ask
from simulations.evaluation.budget import matched
from simulations.evaluation.captions import Assignment
from simulations.evaluation.catalogue import OURS, Setting
from simulations.evaluation.catalogue import method as by_name
from simulations.evaluation.jobs import Sample, Studio
from simulations.evaluation.methods import Method, cloud_only, device_only
from simulations.evaluation.metrics import Estimate, over_groups
from simulations.evaluation.moment import LOCAL
from simulations.evaluation.rules.gates import Gate
from simulations.evaluation.study import CEILING, Plan, Result, Study

SHIPPED, ALONE, MATCH, HARM, APART = (
    "ours, as shipped",
    "device after the prefix",
    "oracle-match",
    "oracle-harm",
    "oracle-TV",
)
WHOLE = 1.0  # a share that an oracle of two draws never needs: it corrects whatever differs
# Shares of the tokens that the cloud takes part in, prefix included.
CURVES: dict[str, tuple[float, ...]] = {
    MATCH: (0.2, 0.27, 0.3, WHOLE),
    HARM: (0.2, 0.27, 0.3),
    APART: (0.3,),
    OURS: (0.3, 0.45, 0.6, 0.8),
    "random": (0.3,),
}
LAGS = 32

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """One method at one share of calls.

    Attributes:
        share: The share asked for; None where the method has its own.
        than_ours: The gap it loses, less what ours as shipped loses with the same captions.
        differing: Share of the positions after the prefix at which the two draws differ, along
            its own pictures.
        kept: Share of them at which the draws differ and the device's stands.
        harm: Mean squared code distance, over all those positions, of what was kept.
        by_row: `differing` in each row of the picture that lies behind the prefix, [rows].
    """

    curve: str
    share: float | None
    result: Result
    than_ours: Estimate
    differing: Estimate
    kept: Estimate
    harm: float
    by_row: NDArray[np.float64]

    @property
    def calls(self) -> float:
        """Share of tokens that the cloud took part in."""
        return self.result.row.calls or 0.0

    @property
    def lost(self) -> Estimate:
        """The gap it loses."""
        assert self.result.row.gap_lost is not None
        return self.result.row.gap_lost


@dataclass(frozen=True, slots=True, eq=False)
class Aftermath:
    """How often the draws differ again after they differed once, by lag [LAGS], from 1 up.

    Which of the differing drafts stands is decided by coin, so the two differ by what a kept
    one does.
    """

    kept: NDArray[np.float64]
    corrected: NDArray[np.float64]
    more: Estimate  # kept less corrected, mean over the lags


def draw_arms(
    studio: Studio, study: Study, plan: Plan, codes: NDArray[np.floating]
) -> tuple[list[Result], list[Arm]]:
    """The two ends with the ceiling, and every arm; `plan.others` pictures of each."""
    shipped, count = plan.shipped, plan.others
    ends = [cloud_only(plan.rules["cloud"]), device_only(plan.rules["device"])]
    ceiling = replace(cloud_only(shipped.sampling), name=CEILING)
    alone = replace(shipped.method, name=ALONE, rule=Gate(never_ask()))
    fixed = [*ends, ceiling, replace(shipped.method, name=SHIPPED), alone]
    drawn = studio.draw([(each, count) for each in fixed], study.assignment)
    cloud, device, reference, ours = drawn[:4]

    def result(method: Method, sample: Sample) -> Result:
        return Result(method, sample, study.row(method, sample, reference, (cloud, device)))

    def arm(curve: str, share: float | None, method: Method, sample: Sample) -> Arm:
        than_ours = study.gap_lost(sample, (cloud, device), ours)
        seen = differences(sample, codes, study.assignment.groups[:count], shipped.prefix)
        return Arm(curve, share, result(method, sample), than_ours, *seen)

    arms = [
        arm(method.name, None, method, sample)
        for method, sample in zip(fixed[3:], drawn[3:], strict=True)
    ]
    captions = study.matching_captions()
    (first,) = studio.draw([(shipped.method, len(captions.rows))], captions)
    for curve, shares in CURVES.items():
        methods = [_at(curve, share, plan, studio, captions, first) for share in shares]
        samples = studio.draw([(each, count) for each in methods], study.assignment)
        arms += [arm(curve, *each) for each in zip(shares, methods, samples, strict=True)]
    return [result(*each) for each in zip(fixed[:3], drawn[:3], strict=True)], arms


def aftermath(arm: Arm, groups: NDArray[np.int64]) -> Aftermath:
    """What follows a difference that was kept or corrected by coin, in an arm of `MATCH`."""
    sample = arm.result.sample
    differ, local = _differing(sample), sample.decisions == LOCAL
    groups = groups[: len(sample)]

    def after(left: Mask) -> Callable[[Mask], NDArray[np.float64]]:
        first = differ & left
        return lambda rows: np.array(
            [_mean(differ[rows, lag:][first[rows, :-lag]]) for lag in range(1, LAGS + 1)]
        )

    kept, corrected = after(local), after(~local)
    everyone = np.ones(len(sample), bool)
    more = over_groups(lambda rows: float((kept(rows) - corrected(rows)).mean()), groups)
    return Aftermath(kept(everyone), corrected(everyone), more)


def calls_for(points: Sequence[tuple[float, float]], goal: float) -> float | None:
    """The least share of calls at which the loss falls to `goal`; None if it does not.

    By straight lines between the (calls, loss) points, in the order of calls.
    """
    ordered = sorted(points)
    if ordered and ordered[0][1] <= goal:
        return ordered[0][0]
    for (x, y), (next_x, next_y) in pairwise(ordered):
        if next_y <= goal < y:
            return x + (next_x - x) * (y - goal) / (y - next_y)
    return None


def _at(
    curve: str, share: float, plan: Plan, studio: Studio, captions: Assignment, first: Sample
) -> Method:
    """The method of a curve with the threshold at which it asks about `share` of the tokens.

    `first`: what ours as shipped drew of the captions that thresholds are tried on.
    """
    length = first.tokens.shape[1]
    prefix = plan.shipped.prefix / length
    rate = max(0.0, (share - prefix) / (1 - prefix))
    setting = Setting(plan.shipped, plan.shipped.sampling, rate, length)
    method = plan.shipped.method if curve == OURS else by_name(curve, setting)
    if share < WHOLE:
        (method,) = matched(studio, [method], first, rate, captions)
    return replace(method, name=f"{curve} {share:.0%}")


def _differing(sample: Sample) -> Mask:
    """Where both models drew, and not the same, [N, T]."""
    differ: Mask = (sample.drafts >= 0) & (sample.own >= 0) & (sample.drafts != sample.own)
    return differ


def differences(
    sample: Sample, codes: NDArray[np.floating], groups: NDArray[np.int64], prefix: int
) -> tuple[Estimate, Estimate, float, NDArray[np.float64]]:
    """`differing`, `kept`, `harm` and `by_row` of an arm."""
    differ = _differing(sample)
    kept = differ & (sample.decisions == LOCAL)
    apart = np.square(codes[sample.drafts] - codes[sample.own]).sum(axis=-1)
    harm = float(apart[kept].sum() / kept[:, prefix:].size)
    side = math.isqrt(differ.shape[1])
    whole = differ[:, side * math.ceil(prefix / side) :]
    by_row = whole.reshape(len(sample), -1, side).mean(axis=(0, 2))
    return _share(differ[:, prefix:], groups), _share(kept[:, prefix:], groups), harm, by_row


def _mean(found: Mask) -> float:
    return float(found.mean()) if found.size else math.nan


def _share(mask: Mask, groups: NDArray[np.int64]) -> Estimate:
    return over_groups(lambda rows: float(mask[rows].mean()), groups)
