"""What a picture takes, and who is faster where, as a page of its own; written, never edited."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulations.evaluation import plots
from simulations.evaluation.catalogue import CLOUD, OURS
from simulations.evaluation.clock.link import PROFILES, sweep
from simulations.evaluation.clock.steps import ACCELERATOR, LENGTHS, StepCosts, measure
from simulations.evaluation.jobs import Studio
from simulations.evaluation.latency import (
    FACTORS,
    BreakEven,
    Crossing,
    Pairs,
    Timing,
    best_lossless,
    break_even,
    curve,
    named_crossings,
    timings,
)
from simulations.evaluation.methods import cloud_only, device_only
from simulations.evaluation.order import Order
from simulations.evaluation.page import ORIGIN, origin
from simulations.evaluation.study import Plan, Study
from simulations.evaluation.table import table
from simulations.evaluation.usage import PICTURES, SWEEP_MS

_PAIRS = (
    (OURS, CLOUD),
    (OURS, "speculative, drafter in the cloud"),
    (OURS, "EAGLE-2, drafter in the cloud"),
    (OURS, "speculative, drafts over the link"),
    (OURS, "EAGLE-2, drafts over the link"),
    (OURS, f"{OURS}, stop and wait"),
    (OURS, "CIAR"),
    (OURS, "CoDe"),
)
_EVEN = _PAIRS[:3]  # those that cross the link once, where only the cloud's cost decides
_SWEPT = (CLOUD, OURS, "CIAR", "CoDe", "speculative", "EAGLE-2", "LANTERN")
_HEAD = (
    """# What a picture takes, and how long

Written by `python -m simulations evaluate --stage latency`; definitions are in
[evaluation.md](evaluation.md#on-the-page-on-latency), what the pictures are worth in
[results.md](results.md).

"""
    + ORIGIN
    + """| pictures | {pictures} of each method |

{summary}
## What a picture takes

Counts on 5G (20 ms), means; seconds with the step costs below. "Cloud, ms" is what a picture takes
of the cloud's processor, with this machine's costs: where many devices share a hub, that decides
how many it serves.

"""
)
_COSTS = """
## Step costs

| costs | what they stand for |
| --- | --- |
| {name} | an idle hub and a device on processors of one kind: processor time of one thread, one picture (two rows if the release guides), measured at commit `{commit}` |
| accelerator, modelled | a large pair on one kind of accelerator: 40 ms a cloud forward of any length here, 3.64 ms a device step, as the paper's figures imply |

{table}
Neither has a queue before the hub. What 1 to 128 devices that draw at once get from one,
[measured](limits.md#what-one-worker-did), is another table. A device that is slower than the hub's
processor, as in a phone, does to ours what a cheaper cloud does: fewer of its steps fit into one of the cloud's.
"""  # noqa: E501  # a row of a table is a line
_BREAK_EVEN = """
## How dear a cloud's step must be

The cost of a lone token's forward, in ms and in steps of this machine's device, from which the
first is faster than the second. All of the cloud's forwards are made dearer by one factor, up to
{most:.0f}; device and links stay as they are.

"""


@dataclass(frozen=True, slots=True)
class Latency:
    """Everything that the page shows."""

    timings: list[Timing]
    crossings: list[Crossing]
    break_even: list[BreakEven]
    costs: StepCosts

    @classmethod
    def of(cls, drawn: Pairs, costs: StepCosts) -> "Latency":
        """Methods with their pictures, by this machine's costs and the accelerator's."""
        timed = timings(drawn, (costs, ACCELERATOR))
        crossed = named_crossings(timed, _PAIRS)
        return cls(timed, crossed, break_even(drawn, costs, _EVEN), costs)


def publish_latency(order: Order, plan: Plan, studio: Studio, study: Study) -> None:
    """Draw what is missing, and write the page with its figure."""
    assert order.page is not None
    ends = [cloud_only(plan.rules["cloud"]), device_only(plan.rules["device"])]
    wanted = [(each, plan.others) for each in (*ends, plan.shipped.method)]
    *drawn, ours = studio.draw(wanted, study.assignment)
    between = study.between(plan, ours)
    samples = studio.draw([(each, plan.others) for each in between], study.assignment)
    pairs = [*zip(ends, drawn, strict=True), *zip(between, samples, strict=True)]
    facts = {**origin(order.work), "pictures": min(PICTURES, plan.others)}
    write_latency(order.page, Latency.of(pairs, step_costs(order)), facts)


def step_costs(order: Order) -> StepCosts:
    """This machine's, as the stage `clock` left them, or else measured now."""
    path = order.costs_path
    return StepCosts.load(path) if path.exists() else measure(order.models)


def write_latency(path: Path, whole: Latency, facts: Mapping[str, object]) -> None:
    """Write the page; its figure lies in the folder of its name beside it."""
    folder, costs = path.with_suffix(""), whole.costs
    folder.mkdir(parents=True, exist_ok=True)
    swept = [each for each in whole.timings if each.name.split(", ")[0] in _SWEPT]
    panels = {name: {each.name: curve(each, name) for each in swept} for name in swept[0].seconds}
    plots.curves(folder / "latency.png", SWEEP_MS, panels, "seconds a picture")
    parts = [
        _HEAD.format(**facts, summary=_summary(whole)),
        _timings(whole.timings),
        "\n## By round-trip time\n\n",
        f"![Seconds a picture against the round-trip time]({path.stem}/latency.png)\n\n",
        _by_round_trip(whole.timings),
        "\n## Where two change places\n\n",
        _crossings(whole.crossings),
        _BREAK_EVEN.format(most=FACTORS[-1]),
        _break_even(whole.break_even, costs),
        _COSTS.format(name=costs.name, commit=costs.commit, table=_costs(costs)),
    ]
    path.write_text("".join(parts), encoding="utf-8")


def _summary(whole: Latency) -> str:
    """For each set of costs: the best lossless deployment, and where ours is faster."""
    told = []
    for costs in whole.timings[0].seconds:
        best = [best_lossless(whole.timings, costs, link.name).name for link in sweep(SWEEP_MS)]
        names = " and ".join(f"`{name}`" for name in dict.fromkeys(best))
        against = "; ".join(
            _against(each)
            for each in whole.crossings
            if each.costs == costs and each.second in {*best, CLOUD}
        )
        told.append(f"* {costs}: the best lossless deployment is {names}. Ours is {against}.\n")
    return "".join(told)


def _against(each: Crossing) -> str:
    word = "faster" if each.faster_at_0 == each.first else "slower"
    at = " and again from ".join(f"{value:.0f} ms" for value in each.at_ms)
    until = f"up to {at}" if at else f"at every round trip up to {SWEEP_MS[-1]:.0f} ms"
    return f"{word} than `{each.second}` {until}"


def _timings(timed: Sequence[Timing]) -> str:
    sets = list(timed[0].seconds)
    heads = ["deployment", "forwards", "cloud tokens", "cloud, ms", "drafts", "round trips"]
    heads += ["kB up", "kB down"]
    heads += [f"{link}, {_short(name)}" for name in sets for link in ("WiFi", "5G", "4G")]
    rows = [
        [
            each.name,
            f"{each.used.forwards:.0f}",
            f"{each.used.cloud_tokens:.0f}",
            f"{each.used.cloud_seconds * 1e3:.0f}",
            f"{each.used.device_steps:.0f}",
            f"{each.used.round_trips:.0f}",
            f"{each.used.bytes_up / 1e3:.1f}",
            f"{each.used.bytes_down / 1e3:.1f}",
            *(f"{each.seconds[n][link]:.2f}" for n in sets for link in ("WiFi", "5G", "4G")),
        ]
        for each in timed
    ]
    return table(heads, rows)


def _by_round_trip(timed: Sequence[Timing]) -> str:
    """Seconds at every round-trip time: ours, cloud-only, and the best lossless deployment."""
    by_name = {each.name: each for each in timed}
    shown = [by_name[name] for name in (OURS, f"{OURS}, stop and wait", CLOUD) if name in by_name]
    heads = ["costs", "round trip", *(each.name for each in shown), "best lossless", "which"]
    rows = []
    for costs in timed[0].seconds:
        for ms, link in zip(SWEEP_MS, sweep(SWEEP_MS), strict=True):
            best = best_lossless(timed, costs, link.name)
            seconds = [each.seconds[costs][link.name] for each in (*shown, best)]
            rows.append([costs, f"{ms:g} ms", *(f"{value:.2f}" for value in seconds), best.name])
    return table(heads, rows)


def _crossings(found: Sequence[Crossing]) -> str:
    rows = []
    for each in found:
        at = ", ".join(f"{value:.0f} ms" for value in each.at_ms) or "none up to 100 ms"
        ends = (each.faster_at_0, each.faster_at_100)
        rows.append([each.costs, each.first, each.second, at, *ends])
    return table(["costs", "of", "against", "cross at", "faster at 0", "at 100 ms"], rows)


def _break_even(found: Sequence[BreakEven], costs: StepCosts) -> str:
    def cell(step_s: float | None) -> str:
        if step_s is None:
            return f"not at {FACTORS[-1] * costs.forward(1) * 1e3:,.0f} ms"
        if step_s == costs.forward(1):
            return "as it is"
        return f"{step_s * 1e3:.1f} ms, {step_s / costs.device:.0f} steps"

    links = [link.name for link in PROFILES]
    rows = [
        [each.first, each.second, *(cell(each.step_s[link]) for link in links)] for each in found
    ]
    return table(["faster", "than", *links], rows)


def _costs(costs: StepCosts) -> str:
    cells = [f"{value * 1e3:.2f}" for value in (costs.device, costs.level, *costs.cloud)]
    heads = ["", "device step", "level of a tree", *(f"cloud, {n}" for n in LENGTHS)]
    return table(heads, [["ms", *cells]])


def _short(costs: str) -> str:
    return costs.split(",")[0]
