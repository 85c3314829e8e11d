"""The experiment as a page with a table and a plot, and as columns."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import duckdb
import matplotlib as mpl
import numpy as np

from simulations.drift.figures import WORST, DeviceFigures, Line, lines
from simulations.drift.lead import SHARES, of_the_lowest, of_the_lowest_elsewhere
from simulations.drift.order import CONDITIONS, LEARNED, Arm, Order
from simulations.drift.study import Study, curve
from simulations.evaluation.family import file_version, models_version
from simulations.evaluation.version import commit

mpl.use("Agg")
from matplotlib import pyplot as plt  # the back end comes first

TITLES: dict[Arm, str] = {
    "cloud": "The cloud model is replaced by one trained further",
    "captions": "It is replaced, and each device asks for a style and a theme of its own",
}
_NAMES = {
    "before": "before the drift",
    "no rounds": "after it, no rounds",
    "inter-dro": "rounds, Inter-DRO",
    "distillation": "rounds, plain distillation",
    "central": "trained in one place (ceiling)",
}
_SHARE_NAMES = ("worst tenth", "worst fifth", "all")
_LEADS = {
    "lowest by the pictures that are counted": of_the_lowest,
    "lowest by the device's other pictures": of_the_lowest_elsewhere,
}
_HEAD = (
    "| | match | gain over no rounds | restored | worst tenth | restored there | asked |"
    " of these stood | kept as the cloud's | kept and right | TV where asked |"
    " at the same questions | TV there | covered |\n" + "| --- |" + " ---: |" * 13 + "\n"
)


def publish(study: Study, rows: Sequence[DeviceFigures], page: Path, command: str) -> str:
    """Writes the page, its plot (.png) and the devices' figures (.parquet) beside it; its text."""
    order = study.order
    tables = {arm: lines(rows, arm) for arm in order.arms}
    page.parent.mkdir(parents=True, exist_ok=True)
    _plot(page.with_suffix(".png"), study, rows)
    write_parquet(page.with_suffix(".parquet"), rows)
    parts = [_facts(order, command)]
    for arm, found in tables.items():
        parts += [f"\n## {TITLES[arm]}\n\n", table(found), _lead(study, arm), _rounds(study, arm)]
    parts.append(f"\n![Match of each device, and the rounds' loss]({page.stem}.png)\n")
    text = "".join(parts)
    page.write_text(text, encoding="utf-8")
    return text


def table(found: Sequence[Line]) -> str:
    """The lines of an arm as Markdown."""
    return _HEAD + "".join(map(_line, found))


def write_parquet(path: Path, rows: Sequence[DeviceFigures]) -> None:
    """One row a device and condition. DuckDB reads the rows as JSON and finds their types."""
    text = path.with_suffix(".rows.json")
    text.write_text(json.dumps([_finite(asdict(row)) for row in rows]), encoding="utf-8")
    duckdb.read_json(str(text)).write_parquet(str(path))
    text.unlink()


def _finite(row: dict[str, object]) -> dict[str, object]:
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}


def _line(line: Line) -> str:
    means = line.means
    gain = f"{100 * line.gain:+.1f} ± {100 * line.gain_error:.1f}"
    cells = [
        _NAMES[line.condition],
        _share(means["match"]),
        "" if line.condition == "no rounds" else gain,
        _restored(line, line.restored),
        _share(line.worst),
        _restored(line, line.worst_restored),
        *(_share(means[name]) for name in ("asked", "acceptance", "kept_match", "safe")),
        f"{means['tv']:.3f}",
        _share(means["same_match"]) if line.condition != "before" else "",
        f"{means['same_tv']:.3f}" if line.condition != "before" else "",
        _share(means["covered"]),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _restored(line: Line, value: float) -> str:
    if line.condition not in LEARNED:
        return ""
    return f"{value:.0%}" if np.isfinite(value) else "no fall"


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _lead(study: Study, arm: Arm) -> str:
    """How far Inter-DRO is ahead of plain distillation, and the error of that."""
    both = study.matches(arm, "inter-dro"), study.matches(arm, "distillation")
    head = ["Inter-DRO less plain distillation, points of match", *_SHARE_NAMES]
    rows = [head, ["---", *["---:"] * len(SHARES)]]
    for name, lead in _LEADS.items():
        rows.append([name, *(str(lead(*both, share)) for share in SHARES)])
    return "\n" + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _rounds(study: Study, arm: Arm) -> str:
    text = ""
    for condition in LEARNED:
        if condition == "central":
            continue
        history = study.folders[arm].rounds(condition).history()
        kept = sum(each.outcome == "kept" for each in history)
        losses = ", ".join(f"{loss:.3f}" for loss in curve(study, arm, condition))
        used = [p for each in history for p in each.participants if p.part == "used"]
        up = sum(each.bytes_up for each in used) / max(len(used), 1)
        text += (
            f"\n{_NAMES[condition]}: {kept} of {len(history)} rounds kept, held-out loss {losses};"
            f" {up / 1000:.0f} kB up a node and round.\n"
        )
    return text


def _facts(order: Order, command: str) -> str:
    size, plan, policy = order.size, order.plan, order.shipped.policy
    return (
        "# What a drift costs, and what rounds bring back\n\n"
        "Written by `python -m simulations drift`; docs/rounds.md says what the columns mean.\n\n"
        "| | |\n| --- | --- |\n"
        f"| command | `{command}` |\n| commit | `{commit()}` |\n"
        f"| models | `{models_version(order.models)}` |\n"
        f"| new cloud | {_new_cloud(order)} |\n"
        f"| fleet | {size.devices} devices, {size.pictures} pictures each to learn from,"
        f" {size.measured} each under every condition |\n"
        f"| policy | {policy.name}, threshold {policy.threshold:.4g} under every condition |\n"
        f"| rounds | {plan.rounds} of {plan.steps} steps, {plan.strategy}, rank {plan.rank} |\n"
        f"| worst tenth | {max(int(np.ceil(WORST * size.devices)), 1)} devices |\n"
    )


def _new_cloud(order: Order) -> str:
    if order.cloud is not None:
        return f"`{file_version(order.cloud)}`, a checkpoint that was named"
    size = order.size
    looks = "pictures as they are" if size.colour == 1 else f"{size.colour:.0%} of the colour left"
    return f"{size.further} steps further at {size.peak:g} of its rates, {looks}"


def _plot(path: Path, study: Study, rows: Sequence[DeviceFigures]) -> None:
    arms = study.order.arms
    figure, panels = plt.subplots(2, len(arms), figsize=(5.4 * len(arms), 7.2), squeeze=False)
    for index, arm in enumerate(arms):
        top, bottom = panels[0, index], panels[1, index]
        for place, condition in enumerate(CONDITIONS):
            mine = [r.match for r in rows if (r.arm, r.condition) == (arm, condition)]
            spread = np.linspace(-0.25, 0.25, len(mine)) if len(mine) > 1 else np.zeros(1)
            top.scatter(place + spread, mine, s=9, alpha=0.5)
            top.hlines(np.mean(mine), place - 0.35, place + 0.35, color="black", lw=1.5)
        found = lines(rows, arm)
        top.plot(
            range(len(found)), [line.worst for line in found], "v", color="black", ms=5,
            label="worst tenth",
        )  # fmt: skip
        top.set_title(TITLES[arm], fontsize=9)
        top.set_xticks(range(len(CONDITIONS)), [c.replace(" ", "\n") for c in CONDITIONS])
        top.set_ylabel("match of a device's drafts (bar: mean)")
        top.legend(fontsize=8)
        for condition in LEARNED[:2]:
            losses = curve(study, arm, condition)
            bottom.plot(range(len(losses)), losses, "o-", ms=3, label=_NAMES[condition])
        bottom.set_xlabel("round")
        bottom.set_ylabel("loss on the nodes' held-out samples")
        bottom.legend(fontsize=8)
        for panel in (top, bottom):
            panel.grid(alpha=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
