"""The results as a page and as a table of columns; both are written, never edited."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import duckdb

from simulations.evaluation import report
from simulations.evaluation.budget import is_tuned
from simulations.evaluation.family import models_version
from simulations.evaluation.findings import Findings, Line
from simulations.evaluation.metrics import Estimate
from simulations.evaluation.standard import NAMES
from simulations.evaluation.study import Result
from simulations.evaluation.table import table
from simulations.evaluation.version import commit

# The first lines of a page's table, of what `origin` says.
ORIGIN = """| | |
| --- | --- |
| command | `{command}` |
| commit | `{commit}` |
| family | `{family}` |
"""
_HEAD = (
    """# Results

Written by `python -m simulations evaluate`; definitions are in [evaluation.md](evaluation.md).
What a picture takes, and who is faster at which round trip, is in
[results-latency.md](results-latency.md), why ours loses more than a tenth of the gap in
[results-why.md](results-why.md), each method at its own best sampling in
[results-own.md](results-own.md), what scores hold under guidance and top-k in
[results-sampling.md](results-sampling.md).
What a drift costs a fleet, and what rounds bring back, is in [drift.md](drift.md).

"""
    + ORIGIN
    + """| pictures | {pictures} of cloud-only and of device-only, {others} of each other method |
| seeds | {seeds} |
| calls asked for | {calls} |
| sampling of the ends | {searched} |
| discrimination | {gap} KD-EffNet, cloud-only to device-only: {gap.in_spreads:.1f} spreads |
| caption scorer | finds a real test picture's caption first in {first:.1%}, in five {five:.1%} |
| | of {among} captions |

"""
)


def write_page(path: Path, whole: Findings, facts: dict[str, object]) -> None:
    """Write the page; its figures lie in the folder of its name beside it."""
    real, folder = whole.real, path.stem
    head = _HEAD.format(first=real.first, five=real.five, among=real.among, **facts)
    equal = [line for line in whole.lines if line.setting == "equal calls"]
    own = [line for line in whole.lines if line.setting == "own best"]
    parts = [
        head,
        "## At equal calls\n\n",
        _quality(equal),
        f"\n![Distance from real pictures against each cost]({folder}/pareto.png)\n\n",
        "## Each at its own best sampling\n\n",
        _quality(own),
        _standard(whole.lines),
        "\n## Intervals\n\nThe paper reports a greedy match of 0.70 for its own pair.\n\n",
        _intervals(whole),
        f"\n![B against the total variation it bounds]({folder}/reliability.png)\n\n",
        f"![Pictures, decisions and scores]({folder}/scores.png)\n",
    ]
    path.write_text("".join(parts), encoding="utf-8")


def write_parquet(path: Path, whole: Findings) -> None:
    """One row a method and setting, one column a figure.

    DuckDB reads the rows as JSON and writes Parquet, so that types are found once, in one place.
    """
    rows = path.with_suffix(".rows.json")
    rows.write_text(json.dumps([_flat(line) for line in whole.lines]), encoding="utf-8")
    duckdb.read_json(str(rows)).write_parquet(str(path))
    rows.unlink()


def origin(work: Path) -> dict[str, object]:
    """What a page is made by: its command, its commit, and the models of a training folder."""
    return {
        "command": command(sys.argv[1:]),
        "commit": commit(),
        "family": models_version(work),
    }


def calls(budget: float | None, captions: int, results: Sequence[Result]) -> str:
    """How many calls were asked for, and how many the methods that decide by a score took."""
    asked = [result.row.calls or 0.0 for result in results if is_tuned(result.method)]
    share = "as many as ours" if budget is None else f"{budget:.0%} of all tokens"
    return (
        f"{share}, the injected prefix included, by thresholds from {captions} other captions;"
        f" methods that decide by a score took {min(asked):.1%} to {max(asked):.1%}"
    )


def command(arguments: Sequence[str]) -> str:
    """The command line with these arguments; folders of one machine are named, not told."""
    words = ["python", "-m", "simulations"]
    for before, word in pairwise(["", *arguments]):
        named = before in {"--work", "--out", "--models", "--cloud", "--fid", "--clip", "--hpsv2"}
        words.append(before.removeprefix("--").upper() if named else word)
    return subprocess.list2cmdline(words)


def _flat(line: Line) -> dict[str, object]:
    row = line.result.row
    used = asdict(line.used)
    used["seconds_5g"] = used.pop("seconds")
    lost, than = row.gap_lost, row.than_ours
    return {
        "method": row.name,
        "setting": line.setting,
        "sampling": row.sampling,
        "pictures": row.pictures,
        "cloud_calls": row.calls,
        "corrected": row.corrected,
        "kd_effnet": row.kernel.value,
        "kd_effnet_spread": row.kernel.spread,
        "gap_lost": lost.value if lost else None,
        "gap_lost_spread": lost.spread if lost else None,
        "gap_less_ours": than.value if than else None,
        "gap_less_ours_spread": than.spread if than else None,
        "kd_effnet_unseen": row.kernel_held_out,
        "fd_effnet": row.frechet,
        "precision": row.coverage.precision,
        "recall": row.coverage.recall,
        "f1": row.coverage.f1,
        "pixel_distance": row.pixels,
        "caption_first": line.retrieval.first,
        "caption_five": line.retrieval.five,
        "caption_cosine": line.retrieval.cosine,
        **{name: line.standard.get(name) for name in NAMES},
        **used,
    }


def _quality(lines: Sequence[Line]) -> str:
    if not lines:
        return (
            "By `--stage own` on a page of its own: [results-own.md](results-own.md) has every"
            " method so.\n"
        )
    heads = [
        "method",
        "sampling",
        "n",
        "calls",
        "forwards / T",
        "KD-EffNet",
        "gap lost",
        "less ours'",
        "FD-EffNet",
    ]
    heads += ["precision", "recall", "F1", "caption first", "in five"]
    return table(heads, [_quality_row(line) for line in lines])


def _quality_row(line: Line) -> list[str]:
    row, length = line.result.row, line.result.sample.tokens.shape[1]
    return [
        row.name,
        row.sampling,
        str(row.pictures),
        f"{row.calls or 0:.1%}",
        f"{line.used.forwards / length:.2f}",
        f"{row.kernel.value:.2f} ± {row.kernel.spread:.2f}",
        "–" if row.gap_lost is None else f"{row.gap_lost.value:.2f} ± {row.gap_lost.spread:.2f}",
        report.less_ours(row),
        f"{row.frechet:.0f}",
        f"{row.coverage.precision:.3f}",
        f"{row.coverage.recall:.3f}",
        f"{row.coverage.f1:.3f}",
        f"{line.retrieval.first:.1%}",
        f"{line.retrieval.five:.1%}",
    ]


def _standard(lines: Sequence[Line]) -> str:
    """The section of the networks that papers report by; empty where none was given."""
    names = [name for name in NAMES if any(line.standard.get(name) is not None for line in lines)]
    if not names:
        return ""
    rows = [
        [
            line.result.row.name,
            line.setting,
            str(line.result.row.pictures),
            *(f"{line.standard[name]:.2f}" for name in names),
        ]
        for line in lines
    ]
    heads = ["method", "setting", "n", *(NAMES[name] for name in names)]
    return "\n## By the networks that papers report by\n\n" + table(heads, rows)


def _intervals(whole: Findings) -> str:
    heads = ["histories", "n", "coverage", "TV", "TV ≤ B", "Spearman(B, TV)", "greedy match"]
    rows = [
        [
            each.histories,
            str(each.pictures),
            *map(
                _cell,
                (
                    each.coverage,
                    each.distance,
                    each.within_bound,
                    each.rank_correlation,
                    each.greedy_match,
                    each.shared_match,
                ),
            ),
        ]
        for each in whole.intervals
    ]
    return table([*heads, "shared-noise match"], rows)


def _cell(value: Estimate) -> str:
    return f"{value.value:.3f} ± {value.spread:.3f}"
