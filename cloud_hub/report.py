"""Answers of the database as tables for people, JSON for programs or CSV for spreadsheets."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import click
from rich.console import Console
from rich.table import Table

from cloud_hub.store import answers, queries, revision
from cloud_hub.store import exposition as counters
from cloud_hub.store.answers import Answer
from cloud_hub.store.database import Database
from cloud_hub.store.periods import Period
from cloud_hub.store.queries import DeviceRow, PictureRow
from fleet.errors import InvalidInputError

Form = Literal["table", "json", "csv"]

_SHARES = {"low", "high", "tv_low", "tv_high"}
_SPAN = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WIDE = 240  # columns where the output is no terminal, so that nothing is cut


def devices(url: str, since: str | None, form: Form) -> None:
    """Prints one line a device.

    Raises:
        InvalidInputError: `since` is no time.
        StoreError: The database cannot be read, or is of another revision.
    """
    moment = parse_since(since, datetime.now(UTC))
    with _reading(url) as connection:
        rows = queries.devices(connection, moment)
    _print(_answer(DeviceRow, rows), form, device_table(rows))


def generations(url: str, since: str | None, limit: int, form: Form) -> None:
    """Prints one line a picture, newest first.

    Raises:
        InvalidInputError: `since` is no time.
        StoreError: The database cannot be read, or is of another revision.
    """
    moment = parse_since(since, datetime.now(UTC))
    with _reading(url) as connection:
        rows = queries.pictures(connection, moment, limit)
    _print(_answer(PictureRow, rows), form, picture_table(rows))


def ask(url: str, question: str, by: Sequence[str], since: str | None, form: Form) -> None:
    """Prints the answer of a question of `store/answers.py`, by groups.

    Raises:
        InvalidInputError: `since` is no time, or the groups are not known.
        StoreError: The database cannot be read, or is of another revision.
    """
    period = Period(parse_since(since, datetime.now(UTC)))
    with _reading(url) as connection:
        answer = answers.ask(connection, question, by, period)
    _print(answer, form)


def statement(url: str, sql: str, limit: int, form: Form) -> None:
    """Prints at most `limit` rows of one SELECT.

    Raises:
        InvalidInputError: It is no single statement that reads.
        StoreError: The database cannot be read, or is of another revision.
    """
    with Database(url, must_exist=True) as database:
        revision.require_current(database)
        found = answers.Answer(*database.select(sql, limit))
    _print(found, form)
    if len(found.rows) == limit:
        click.echo(f"stopped after {limit} rows: --limit takes more", err=True)


def exposition(url: str) -> None:
    """Prints the sums as Prometheus reads them.

    Raises:
        StoreError: The database cannot be read, or is of another revision.
    """
    with _reading(url) as connection:
        click.echo(counters.exposition(connection), nl=False)


@contextmanager
def _reading(url: str) -> Iterator[Any]:
    with Database(url, must_exist=True) as database:
        revision.require_current(database)
        with database.read() as connection:
            yield connection


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


def answer_table(answer: Answer) -> Table:
    """Any answer as a table: numbers with four digits or whole, shares in percent."""
    table = _table(*answer.columns)
    for row in answer.rows:
        table.add_row(*map(_cell, answer.columns, row))
    return table


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        share = column.endswith(("_share", "_rate")) or column in _SHARES
        if share:
            return f"{value:.1%}"
        # Bytes and counts stay readable: no powers of ten.
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)


def _answer(kind: type[Any], rows: Sequence[Any]) -> Answer:
    names = tuple(each.name for each in fields(kind))
    return Answer(names, [tuple(getattr(row, name) for name in names) for row in rows])


def _print(answer: Answer, form: Form, table: Table | None = None) -> None:
    if form == "json":
        click.echo(json.dumps(answer.records(), default=_plain, indent=2))
    elif form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(answer.columns)
        plain = (datetime, bytes)
        writer.writerows(
            [_plain(v) if isinstance(v, plain) else v for v in row] for row in answer.rows
        )
        click.echo(text.getvalue(), nl=False)
    elif not answer.rows:
        click.echo("nothing was reported in that time")
    else:
        console = Console()
        wide = console if console.is_terminal else Console(width=_WIDE)
        wide.print(answer_table(answer) if table is None else table)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
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
