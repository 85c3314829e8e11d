"""Figures of a measurement as a table in the terminal, and for whoever runs the measurement."""

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FIGURES = "SIMULATIONS_FIGURES"  # environment: a file that takes each table as a line of JSON
_WIDTH = 120

Table = Sequence[Mapping[str, Any]]  # rows of cells by the names of their columns


def figures(rows: "Sequence[DataclassInstance]") -> None:
    """Prints equal dataclasses as a table, numbers with three digits."""
    cells = [asdict(row) for row in rows]
    if file := os.environ.get(FIGURES):
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(cells, default=str) + "\n")
    print(drawn(cells))  # noqa: T201  # what a command is for


def drawn(rows: Table, width: int = _WIDTH) -> str:
    """A table as text, in lines of at most `width` characters."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(box=None, header_style="bold", pad_edge=False)
    for name in rows[0]:
        grid.add_column(name, justify="left" if name == "subject" else "right")
    for row in rows:
        grid.add_row(*map(shown, row.values()))
    console = Console(width=width, file=io.StringIO())
    console.print(grid)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # it is ours
    return text.rstrip()


def shown(value: object) -> str:
    """A cell: numbers with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
