"""The log as Parquet, for DuckDB, polars and others.

    FOLDER/TABLE/day=2026-12-01/08.parquet    rows of an hour of hub time (sums: of the day), zstd
    FOLDER/TABLE/data.parquet                 small tables, whole
    FOLDER/watermark.json                     what is there: schema, moment, rows of each file

A file appears whole, under its name, in one step, and the watermark after all of them; so readers
need no lock and no pause. A file is written again while its rows can still change: when their
number differs from the watermark's, and the last days' sums and hours' checks always.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud_hub.store import extract, revision, views
from cloud_hub.store.database import Database
from fleet.errors import InvalidInputError

if TYPE_CHECKING:
    import polars as pl

WATERMARK = "watermark.json"
_LOOK_BACK = timedelta(days=1)  # how far before the watermark late rows are looked for
_STILL_SUMMED = timedelta(hours=2)  # a transaction may wait for its commit


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    files: int
    rows: int
    until: datetime


@dataclass(slots=True)
class Watermark:
    """What a folder holds: rows by table and hour, complete until a moment of hub time."""

    schema: str
    until: datetime | None = None
    rows: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, schema: str) -> "Watermark":
        """The folder's, or a new one.

        Raises:
            InvalidInputError: It was written with another schema, or is no watermark.
        """
        path = folder / WATERMARK
        if not path.exists():
            return cls(schema)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            mark = cls(found["schema"], datetime.fromisoformat(found["until"]), found["rows"])
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(f"{path} is no watermark: export to a new folder") from error
        if mark.schema != schema:
            raise InvalidInputError(
                f"{folder} was exported with schema {mark.schema}, this is {schema}: export to a"
                " new folder, so that one folder has one schema"
            )
        return mark

    def write(self, folder: Path) -> None:
        """Puts it in place in one step."""
        assert self.until is not None  # noqa: S101 - an export sets it
        text = {"schema": self.schema, "until": self.until.isoformat(), "rows": self.rows}
        _put(folder / WATERMARK, json.dumps(text, indent=1).encode())


def export(database: Database, folder: Path, *, everything: bool = False) -> Exported:
    """Brings a folder up to the database; `everything` looks at every hour again.

    Raises:
        InvalidInputError: polars is not installed, or the folder is of another schema.
        StoreError: The database cannot be read.
    """
    _polars()
    schema = f"{revision.head()}.{views.EDITION}"
    mark = Watermark.read(folder, schema)
    began = datetime.now(UTC)
    looked = None if everything or mark.until is None else mark.until - _LOOK_BACK
    since = looked and looked.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    files = rows = 0
    for table in extract.HOURLY:
        with database.read() as connection:
            spans = extract.spans(connection, table, None if table in extract.SUMS else since)
        known = mark.rows.setdefault(table, {})
        for begins, count in sorted(spans.items()):
            if known.get(begins.isoformat()) == count and not _may_change(
                table, begins, mark.until
            ):
                continue
            with database.read() as connection:
                found = extract.rows(connection, table, begins)
            known[begins.isoformat()] = _write(folder, table, found, begins, schema)
            files, rows = files + 1, rows + known[begins.isoformat()]
    for table in extract.WHOLE:
        with database.read() as connection:
            rows += _write(folder, table, extract.rows(connection, table), None, schema)
        files += 1
    mark.until = began
    mark.write(folder)
    return Exported(files, rows, began)


def _may_change(table: str, begins: datetime, until: datetime | None) -> bool:
    """Whether rows of a file may have changed since the watermark though none came."""
    changes = table in extract.SUMS or table == "spot_check"  # checks get counted
    return changes and (until is None or begins + extract.span(table) > until - _STILL_SUMMED)


def _write(
    folder: Path,
    table: str,
    found: tuple[Sequence[str], list[tuple[Any, ...]]],
    begins: datetime | None,
    schema: str,
) -> int:
    names, rows = found
    place = folder / table
    path = place / "data.parquet"
    if begins is not None:
        path = place / f"day={begins:%Y-%m-%d}" / f"{begins:%H}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    frame = _frame(table, names, rows)
    facts = {"ciar_fleet.schema": schema, "ciar_fleet.table": table}
    frame.write_parquet(partial, compression="zstd", metadata=facts)
    _sync_and_replace(partial, path)
    return len(rows)


def _frame(table: str, names: Sequence[str], rows: list[tuple[Any, ...]]) -> "pl.DataFrame":
    library = _polars()
    packed = extract.json_columns(table)
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    data = {}
    for name, values in zip(names, columns, strict=True):
        kept = [json.dumps(value, sort_keys=True) for value in values] if name in packed else values
        data[name] = library.Series(name, list(kept), dtype=_type(table, name), strict=False)
    frame: pl.DataFrame = library.DataFrame(data)
    return frame


def _type(table: str, name: str) -> Any:
    pl = _polars()
    kinds = {
        str: pl.String,
        int: pl.Int64,
        float: pl.Float64,
        bool: pl.Boolean,
        bytes: pl.Binary,
        dict: pl.String,
        datetime: pl.Datetime("us", "UTC"),
    }
    return kinds[extract.python_type(table, name)]


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    _sync_and_replace(partial, path)


def _sync_and_replace(partial: Path, path: Path) -> None:
    with partial.open("rb") as written:
        os.fsync(written.fileno())
    partial.replace(path)


def _polars() -> Any:
    try:
        import polars as pl
    except ImportError as error:
        raise InvalidInputError(
            "an export needs polars: pip install 'ciar-fleet[analysis]'"
        ) from error
    return pl
