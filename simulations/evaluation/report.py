"""The study on paper: JSON for the model card, a table for the terminal, a sheet to look at."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.table import Table

from simulations.evaluation.metrics import Estimate
from simulations.evaluation.study import Plan, Row

_COLUMNS = 10
_SIDE = 96
_LABEL = 190


def write_json(
    path: Path, plan: Plan, rows: Sequence[Row], gap: Estimate, made_from: dict[str, object]
) -> None:
    """Write the table, the `gap` between the ends, and what both were made from."""
    content = {
        **made_from,
        "gap": asdict(gap),
        "discrimination_in_spreads": gap.in_spreads,
        "shipped": asdict(plan.shipped),
        "rules": {which: asdict(rule) for which, rule in plan.rules.items()},
        "rows": [row.as_json() for row in rows],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    drawn.add_column("pictures")
    for name in _HEADS:
        drawn.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        drawn.add_row(row.name, *_cells(row))
    return drawn


def markdown(rows: Sequence[Row]) -> str:
    """The rows for a page."""
    lines = [
        "| pictures | " + " | ".join(_HEADS) + " |",
        "| --- |" + " --- |" * len(_HEADS),
        *(f"| {row.name} | " + " | ".join(_cells(row)) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def write_sheet(path: Path, captions: Sequence[str], rows: dict[str, NDArray[np.uint8]]) -> None:
    """Write a PNG: a row a method, a column a caption (the first ones)."""
    count = min(_COLUMNS, len(captions), *(len(pictures) for pictures in rows.values()))
    head = 40
    size = (_LABEL + count * (_SIDE + 6) + 10, head + len(rows) * (_SIDE + 6) + 10)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for column in range(count):
        text = _two_lines(captions[column])
        pen.text((_LABEL + column * (_SIDE + 6), 8), text, "black", ImageFont.load_default(10))
    for line, (name, pictures) in enumerate(rows.items()):
        y = head + line * (_SIDE + 6)
        pen.text((10, y + _SIDE // 2 - 8), name, "black", ImageFont.load_default(14))
        for column in range(count):
            picture = Image.fromarray(pictures[column]).resize((_SIDE, _SIDE))
            sheet.paste(picture, (_LABEL + column * (_SIDE + 6), y))
    sheet.save(path)


def less_ours(row: Row) -> str:
    """By how much more of the gap than ours a row loses."""
    than = row.than_ours
    return "–" if than is None else f"{than.value:+.2f} ± {than.spread:.2f}"


_HEADS = (
    "sampling",
    "n",
    "cloud calls",
    "corrected",
    "KD-EffNet",
    "gap lost",
    "less ours'",
    "unseen emoji",
    "FD-EffNet",
    "precision",
    "recall",
    "F1",
    "pixel distance",
)


def _cells(row: Row) -> list[str]:
    return [
        row.sampling or "–",
        str(row.pictures),
        _percent(row.calls),
        _percent(row.corrected),
        f"{row.kernel.value:.2f} ± {row.kernel.spread:.2f}",
        "–" if row.gap_lost is None else f"{row.gap_lost.value:.2f} ± {row.gap_lost.spread:.2f}",
        less_ours(row),
        "–" if row.kernel_held_out is None else f"{row.kernel_held_out:.2f}",
        f"{row.frechet:.0f}",
        f"{row.coverage.precision:.3f}",
        f"{row.coverage.recall:.3f}",
        f"{row.coverage.f1:.3f}",
        "–" if row.pixels is None else f"{row.pixels:.0f}",
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _two_lines(caption: str) -> str:
    style, _, name = caption.partition(": ")
    return f"{style}\n{name[:17]}"
