"""Figures of a measurement as a table in the terminal."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def figures(rows: "Sequence[DataclassInstance]") -> None:
    """Prints equal dataclasses as a table, numbers with three digits."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    cells = [asdict(row) for row in rows]
    for name in cells[0]:
        table.add_column(name, justify="left" if name == "subject" else "right")
    for row in cells:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=120).print(table)
