"""The page on why ours loses what it loses; written, never edited."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fleet.models.checkpoint import load_tokenizer
from simulations.evaluation import page, plots
from simulations.evaluation.alike import CODES_APART, Alike, alike
from simulations.evaluation.catalogue import OURS
from simulations.evaluation.jobs import Studio
from simulations.evaluation.metrics import Estimate
from simulations.evaluation.order import Order
from simulations.evaluation.study import Plan, Result, Study
from simulations.evaluation.table import table
from simulations.evaluation.why import (
    ALONE,
    APART,
    CURVES,
    HARM,
    MATCH,
    SHIPPED,
    WHOLE,
    Aftermath,
    Arm,
    aftermath,
    calls_for,
    draw_arms,
)

GOAL, BUDGET = 0.1, 0.3  # the gap that may be lost, and at which share of calls

_HEAD = (
    """# Why ours loses more than a tenth

Written by `python -m simulations evaluate --stage why`; the arms are in
[evaluation.md](evaluation.md#why-ours-loses-what-it-loses), every method is in
[results.md](results.md).

"""
    + page.ORIGIN
    + """| pictures | {pictures} of each arm, the same captions and seeds for all |
| seeds | {seeds} |

"""
)


@dataclass(frozen=True, slots=True, eq=False)
class Why:
    """Everything that the page shows."""

    ends: list[Result]  # cloud-only, device-only, cloud-only at the shipped sampling
    arms: list[Arm]
    after: Aftermath
    scores: list[Alike]  # along ours as shipped

    def arm(self, curve: str, share: float | None = None) -> Arm:
        """The arm of a curve at the share asked for."""
        return next(arm for arm in self.arms if (arm.curve, arm.share) == (curve, share))

    def curve(self, name: str) -> list[Arm]:
        """The arms of a curve by their calls, from none of the cloud's after the prefix."""
        found = [arm for arm in self.arms if arm.curve == name]
        if name in {MATCH, HARM}:
            found = [arm for arm in found if arm.share != WHOLE] + [self.arm(MATCH, WHOLE)]
        return sorted([self.arm(ALONE), *found], key=lambda arm: arm.calls)

    def lost_at(self, name: str, share: float) -> float:
        """The gap that a curve loses at a share of calls."""
        arms = self.curve(name)
        return float(np.interp(share, [a.calls for a in arms], [a.lost.value for a in arms]))

    def calls_for(self, name: str) -> str:
        """The share of calls at which a curve falls to the goal, in words."""
        points = [(arm.calls, arm.lost.value) for arm in self.curve(name)]
        found = calls_for(points, GOAL)
        return f"not by {points[-1][0]:.0%}" if found is None else f"{found:.0%}"


def publish_why(order: Order, plan: Plan, studio: Studio, study: Study) -> None:
    """Draw what is missing, and write the page with its figure."""
    assert order.page is not None
    tokenizer = load_tokenizer(order.work / "tokenizer.pt")
    codes = tokenizer.quantize.codes.detach().numpy()
    ends, arms = draw_arms(studio, study, plan, codes)
    thinned = next(arm for arm in arms if arm.curve == MATCH)  # the one that keeps most
    groups, prefix = study.assignment.groups, plan.shipped.prefix
    ours = next(arm.result.sample for arm in arms if arm.curve == SHIPPED)
    looked = alike(ours, codes, groups, prefix)
    whole = Why(ends, arms, aftermath(thinned, groups), looked)
    facts = {
        **page.origin(order.work),
        "pictures": order.others,
        "seeds": order.seeds,
    }
    write_why(order.page, whole, facts)


def write_why(path: Path, whole: Why, facts: Mapping[str, object]) -> None:
    """Write the page; its figure lies in the folder of its name beside it."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    plots.why(
        folder / "budgets.png",
        {name: [(a.calls, a.lost) for a in whole.curve(name)] for name in CURVES},
        GOAL,
        {
            "the cloud's pictures": whole.arm(MATCH, WHOLE).by_row,
            "ours": whole.arm(SHIPPED).by_row,
            "the device's": whole.arm(ALONE).by_row,
        },
        {"kept": whole.after.kept, "corrected": whole.after.corrected},
    )
    parts = [
        _HEAD.format(**facts),
        "## The reason\n\n",
        _reason(whole),
        "\n## What a share of calls buys\n\n",
        _arms(whole),
        f"\n![The gap lost against calls; where the draws differ]({path.stem}/budgets.png)\n",
        "\n## What another score would ask\n\nAlong ours' pictures, each at as many positions.\n\n",
        _scores(whole),
    ]
    path.write_text("".join(parts), encoding="utf-8")


def _reason(whole: Why) -> str:
    told = (_pair, _budget, _tenth, _which, _questions, _others, _drift)
    return "".join(f"* {tell(whole)}\n" for tell in told)


def _pair(whole: Why) -> str:
    arm = whole.arm(MATCH, WHOLE)
    return (
        f"**The pair.** With one noise, device and cloud draw different tokens at "
        f"{_percent(arm.differing)} of the positions after the prefix, along the cloud's own "
        f"pictures. Who corrects all of them, and asks about nothing else, takes {arm.calls:.1%} "
        "of the calls; the picture is then the cloud's, token for token."
    )


def _budget(whole: Why) -> str:
    lost = {name: whole.lost_at(name, BUDGET) for name in CURVES}
    best = min((MATCH, HARM, APART), key=lambda name: lost[name])
    told = ", ".join(f"`{name}` {value:.2f}" for name, value in lost.items())
    verdict = (
        f"`{best}` keeps within a tenth: what fails is the score."
        if lost[best] <= GOAL
        else f"Not even `{best}`, which knows the cloud's word before it asks, keeps within a "
        f"tenth: at this share the pair itself costs {lost[best]:.2f}, and ours' score "
        f"{lost[OURS] - lost[best]:.2f} on top."
    )
    shipped = whole.arm(SHIPPED)
    near = min(whole.curve(best), key=lambda arm: abs(arm.calls - BUDGET))
    if abs(near.lost.value - GOAL) < near.lost.spread:
        verdict += (
            f" The spread is wider than what parts it from a tenth: its nearest arm loses "
            f"{_gap(near.lost)} at {near.calls:.1%}."
        )
    return (
        f"**At {BUDGET:.0%} of the calls**, by straight lines between the shares drawn, the gap "
        f"lost is {told} (ours as shipped: {_gap(shipped.lost)} at {shipped.calls:.1%}). {verdict}"
    )


def _tenth(whole: Why) -> str:
    found = [f"`{name}` {whole.calls_for(name)}" for name in CURVES]
    return (
        f"**Calls at which a tenth is lost**, likewise: {', '.join(found)}. The shipped sampling "
        f"alone loses {_gap(_lost(whole.ends[2]))}: the ends are each at their own best "
        "temperature."
    )


def _questions(whole: Why) -> str:
    ours = whole.arm(SHIPPED)
    return (
        f"**What ours asks.** {ours.result.row.corrected or 0:.0%} of its questions correct a "
        f"draft. The draws differ at {_percent(ours.differing)} of the positions, and at "
        f"{_percent(ours.kept)} the device's stands."
    )


def _which(whole: Why) -> str:
    coin, far = (next(arm for arm in whole.arms if arm.curve == name) for name in (MATCH, HARM))
    told = [
        f"`{arm.curve}` at {arm.calls:.1%} keeps {_percent(arm.kept)} different and loses "
        f"{_gap(arm.lost)}"
        for arm in (coin, far)
    ]
    return (
        f"**Which differences are kept, not how many.** {told[0]}: a coin says which. {told[1]}: "
        f"the nearest codes. The device after the prefix corrects none and loses "
        f"{_gap(whole.arm(ALONE).lost)}."
    )


def _others(whole: Why) -> str:
    seen = {each.name: each for each in whole.scores}
    near, known = seen["entropy"], seen[CODES_APART]
    return (
        f"**Another score asks the same.** `entropy` asks about {_percent(near.same)} of the "
        f"positions that ours asks about, and catches {near.caught.value:.0%} of the differences "
        f"and {near.harm.value:.0%} of the harm; as many questions by the codes' distance itself "
        f"would catch {known.caught.value:.0%} and {known.harm.value:.0%}. Whichever of the two "
        "asks, nearly the same tokens are left to the device."
    )


def _drift(whole: Why) -> str:
    cloud, ours, alone = whole.arm(MATCH, WHOLE), whole.arm(SHIPPED), whole.arm(ALONE)
    after, length = whole.after, alone.result.sample.tokens.shape[1]
    below = math.isqrt(length) - 1  # the lag of a row
    return (
        f"**Drift.** The draws differ at {_percent(cloud.differing)} along the cloud's pictures, "
        f"{_percent(ours.differing)} along ours' and {_percent(alone.differing)} along the "
        f"device's; from the first to the last quarter of the rows {_quarters(cloud)}, "
        f"{_quarters(ours)} and {_quarters(alone)}. After a difference that a coin lets stand, the "
        f"next {len(after.kept)} positions differ in {after.kept.mean():.1%}, after one that it "
        f"has corrected in {after.corrected.mean():.1%}: {after.more.value * 100:+.1f} ± "
        f"{after.more.spread * 100:.1f} points. Of the very next ones {after.kept[0]:.1%} against "
        f"{after.corrected[0]:.1%} differ, of those below {after.kept[below]:.1%} against "
        f"{after.corrected[below]:.1%}."
    )


def _arms(whole: Why) -> str:
    heads = ["arm", "asked for", "calls", "draws differ", "kept so", "harm kept", "pixel distance"]
    heads += ["KD-EffNet", "gap lost", "less ours' as shipped"]
    ends = [
        [
            end.method.name,
            "",
            f"{end.row.calls or 0:.1%}",
            *("", "", ""),
            _pixels(end),
            _gap(end.row.kernel),
            _gap(_lost(end)),
            "",
        ]
        for end in whole.ends
    ]
    rows = [
        [
            arm.curve,
            _asked_for(arm),
            f"{arm.calls:.1%}",
            _percent(arm.differing),
            _percent(arm.kept),
            f"{arm.harm:.3f}",
            _pixels(arm.result),
            _gap(arm.result.row.kernel),
            _gap(arm.lost),
            f"{arm.than_ours.value:+.2f} ± {arm.than_ours.spread:.2f}",
        ]
        for arm in whole.arms
    ]
    return table(heads, [*ends, *rows])


def _scores(whole: Why) -> str:
    heads = [
        "score",
        "Spearman with ours",
        "asked by ours too",
        "differences caught",
        "harm caught",
    ]
    rows = [
        [
            each.name,
            "" if each.rank is None else _gap(each.rank),
            _percent(each.same),
            _percent(each.caught),
            _percent(each.harm),
        ]
        for each in whole.scores
    ]
    return table(heads, rows)


def _asked_for(arm: Arm) -> str:
    if arm.share is None:
        return ""
    return "all that differ" if arm.share == WHOLE else f"{arm.share:.0%}"


def _quarters(arm: Arm) -> str:
    quarter = max(1, len(arm.by_row) // 4)
    first, last = arm.by_row[:quarter].mean(), arm.by_row[-quarter:].mean()
    return f"{first:.1%} to {last:.1%}"


def _lost(result: Result) -> Estimate:
    assert result.row.gap_lost is not None
    return result.row.gap_lost


def _pixels(result: Result) -> str:
    return f"{result.row.pixels or 0:,.0f}"


def _gap(value: Estimate) -> str:
    return f"{value.value:.2f} ± {value.spread:.2f}"


def _percent(value: Estimate) -> str:
    return f"{value.value:.1%} ± {value.spread:.1%}"
