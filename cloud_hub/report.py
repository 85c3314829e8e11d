"""Answers of the database as tables for people or JSON for programs."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cloud_hub.store import queries, revision
from cloud_hub.store.database import Database
from cloud_hub.store.queries import DeviceRow, PictureRow
from fleet.errors import InvalidInputError

_SPAN = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WIDE = 200  # columns where the output is no terminal, so that nothing is cut


def devices(url: str, since: str | None, *, as_json: bool) -> None:
    """Prints one line a device.

    Raises:
        InvalidInputError: `since` is no time.
        StoreError: The database cannot be read, or is of another revision.
    """
    moment = parse_since(since, datetime.now(UTC))
    with Database(url, must_exist=True) as database:
        revision.require_current(database)
        with database.read() as connection:
            rows = queries.devices(connection, moment)
    _print(rows, device_table(rows), as_json=as_json)


def generations(url: str, since: str | None, limit: int, *, as_json: bool) -> None:
    """Prints one line a picture, newest first.

    Raises:
        InvalidInputError: `since` is no time.
        StoreError: The database cannot be read, or is of another revision.
    """
    moment = parse_since(since, datetime.now(UTC))
    with Database(url, must_exist=True) as database:
        revision.require_current(database)
        with database.read() as connection:
            rows = queries.pictures(connection, moment, limit)
    _print(rows, picture_table(rows), as_json=as_json)


def parse_since(text: str | None, now: datetime) -> datetime | None:
    """The moment that a span (`90m`, `12h`, `7d`) or an ISO date names; a date is UTC.

    Raises:
        InvalidInputError: It is neither.
    """
    if text is None:
        return None
    try:
        if span := _SPAN.fullmatch(text):
            return now - timedelta(seconds=int(span[1]) * _SECONDS[span[2]])
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"--since {text!r} is no time: take a span such as 90m, 12h or 7d, or a date"
        ) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def device_table(rows: Sequence[DeviceRow]) -> Table:
    """The devices as a table."""
    table = _table(
        "device",
        *("state", "pictures", "cloud", "local", "corrected", "round trips", "kB up", "kB down"),
        *("p50 s", "p95 s", "tokens/s", "fallbacks"),
    )
    for row in rows:
        table.add_row(
            row.node_id,
            row.state or "unknown",
            str(row.pictures),
            *map(_percent, (row.cloud_share, row.local_share, row.corrected_share)),
            _number(row.round_trips, 1),
            *(_number(_kilo(value), 1) for value in (row.bytes_up, row.bytes_down)),
            *(_number(value, 2) for value in (row.latency_p50_s, row.latency_p95_s)),
            _number(row.tokens_per_s, 1),
            str(row.fallbacks),
        )
    return table


def picture_table(rows: Sequence[PictureRow]) -> Table:
    """The pictures as a table."""
    table = _table(
        "received",
        *("device", "picture", "policy", "tokens", "local", "verified", "corrected"),
        *("forwards", "round trips", "kB up", "kB down", "seconds", "fallback"),
    )
    for row in rows:
        table.add_row(
            f"{row.received_at:%Y-%m-%d %H:%M:%S}",
            row.node_id,
            row.generation_id[:8],
            row.policy,
            *map(str, (row.tokens, row.local, row.verified, row.corrected)),
            *map(str, (row.forwards, row.round_trips)),
            *(_number(_kilo(value), 1) for value in (row.bytes_up, row.bytes_down)),
            _number(row.duration_s, 2),
            row.fallback or "-",
        )
    return table


def _print(rows: Sequence[DeviceRow | PictureRow], table: Table, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], default=_plain, indent=2))
        return
    if not rows:
        click.echo("nothing was reported in that time")
        return
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(table)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=None, header_style="bold", pad_edge=False)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _kilo(value: float | None) -> float | None:
    return value / 1000 if value is not None else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
