"""The table of devices as text and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console

from cloud_hub.report import device_table
from cloud_hub.store.queries import DeviceRow

_WIDE = 160


def device_text(rows: Sequence[DeviceRow]) -> str:
    """The table as `cloud_hub query devices` prints it."""
    stream = io.StringIO()
    Console(file=stream, width=_WIDE, color_system=None).print(device_table(rows))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def write_tables(out: Path, rows: Sequence[DeviceRow]) -> None:
    """Write `devices.txt` and `devices.csv` (one column a field, in basic units)."""
    (out / "devices.txt").write_text(device_text(rows) + "\n", encoding="utf-8")
    with (out / "devices.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(DeviceRow)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
