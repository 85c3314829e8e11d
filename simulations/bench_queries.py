"""Every documented question, over the sums of many pictures and the rows of some of them.

The database is filled straight with rows, as a fleet leaves them: past days by the day, the last
ones by the hour, each span with its histograms and scores, and pictures with their arrays and
checks. Sums are added up by the hub's own clean-up. Then each question is asked again and again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert, text, update

from cloud_hub.store import answers, checks, queries, views
from cloud_hub.store.adding_up import add_up
from cloud_hub.store.bulk import write_rows
from cloud_hub.store.database import Database
from cloud_hub.store.days import make_days
from cloud_hub.store.histograms import METRICS
from cloud_hub.store.periods import DAY_S, HOUR_S, Period, begin_of
from cloud_hub.store.revision import migrate
from cloud_hub.store.sums import TABLES, columns
from cloud_hub.store.tables import (
    Base,
    CheckSumRow,
    GenerationRow,
    HistogramRow,
    NodeRow,
    ScoreSumRow,
    SpanRow,
    SpotCheckRow,
    SumMarkRow,
    SumRow,
)
from fleet.buckets import SCORE_BINS, bucket_of
from fleet.ids import new_id
from simulations.sample_records import TOKENS, record_at

_AT_ONCE = 5000
_REGIONS, _LOCAL_BINS = 16, 12  # of the checked tokens
_TEMPLATES = 32  # histograms that spans share
_CHECKED = 20  # positions of a spot check


@dataclass(frozen=True, slots=True)
class Fleet:
    """How much there is to ask about."""

    nodes: int
    pictures: int  # in the sums
    rows: int  # pictures with a row of their own
    days: int = 28  # that the pictures are spread over
    hourly: int = 3  # of these, the last ones whose hours are kept: `store.keep_hour_days`

    def spans(self, now: datetime) -> list[tuple[datetime, int]]:
        """Beginning and length of every node's spans."""
        first = self.first_hour(now)
        days = [(first - timedelta(days=d + 1), DAY_S) for d in range(self.days - self.hourly)]
        over = int((now - first) / timedelta(hours=1))
        return days + [(first + timedelta(hours=h), HOUR_S) for h in range(over + 1)]

    def first_hour(self, now: datetime) -> datetime:
        """From when on there are hours: of the last days, and of the present one."""
        return begin_of(now, DAY_S) - timedelta(days=self.hourly - 1)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and how long its answer took."""

    subject: str
    p50_s: float
    p95_s: float
    rows: int


def bench(url: str, fleet: Fleet, *, repeats: int) -> list[Asked]:
    """Fills an empty database and asks every question `repeats` times."""
    now = datetime.now(UTC)
    with Database(url) as database:
        migrate(database)
        _fill(database, fleet, now)
        return [
            _ask(database, subject, question, repeats)
            for subject, question in _questions(now).items()
        ]


# ── Questions ─────────────────────────────────────────────────────────────────────────────


Question = Callable[[Connection], Any]


def _questions(now: datetime) -> dict[str, Question]:
    week = Period(now - timedelta(days=7))
    found: dict[str, Question] = {}
    for name in (*answers.QUESTIONS, "drift"):
        for by in (["node"], ["day"], ["version", "policy"]):
            found[f"{name} by {','.join(by)}, 7 days"] = _question(name, by, week)
    for name in answers.QUESTIONS:
        found[f"{name} by version, ever"] = _question(name, ["version"], Period())
    day = now - timedelta(days=1)
    found["devices, 1 day"] = lambda connection: queries.devices(connection, day)
    found["devices, ever"] = lambda connection: queries.devices(connection, None)
    found["generations"] = lambda connection: queries.pictures(connection, None, 100)
    found["calibrate, 1 day"] = lambda connection: checks.checked_pictures(connection, day)
    for view in views.names():
        found[view] = _first_of(view)
    return found


def _question(name: str, by: list[str], period: Period) -> Question:
    return lambda connection: answers.ask(connection, name, by, period).rows


def _first_of(view: str) -> Question:
    statement = text(f"SELECT * FROM {view} LIMIT 1000")  # noqa: S608 - our own names
    return lambda connection: connection.execute(statement).all()


def _ask(database: Database, subject: str, question: Question, repeats: int) -> Asked:
    took, rows = [], 0
    for _ in range(repeats):
        began = time.perf_counter()
        with database.read() as connection:
            rows = len(question(connection))
        took.append(time.perf_counter() - began)
    return Asked(subject, float(np.median(took)), float(np.quantile(took, 0.95)), rows)


# ── Filling ───────────────────────────────────────────────────────────────────────────────


def _fill(database: Database, fleet: Fleet, now: datetime) -> None:
    rng = np.random.default_rng(0)
    names = [f"n{index}" for index in range(fleet.nodes)]
    _write(database, NodeRow, (_node(name, now) for name in names))
    keys = [(name, *span) for name in names for span in fleet.spans(now)]
    seconds = sum(span_s for _, _, span_s in keys)
    _write(database, SpanRow, (_span(i + 1, *key) for i, key in enumerate(keys)))
    counts = [round(fleet.pictures * span_s / seconds) for _, _, span_s in keys]
    for table, rows_of in (
        (SumRow, _sums),
        (HistogramRow, _histograms),
        (ScoreSumRow, _scores),
        (CheckSumRow, _checks),
    ):
        _write(database, table, rows_of(counts, rng))
    _pictures(database, fleet, now)
    with database.write() as connection:
        if not database.is_sqlite:  # spans came with numbers of their own
            connection.execute(text("SELECT setval('span_id_seq', (SELECT MAX(id) FROM span))"))
        full = update(SumMarkRow).where(SumMarkRow.span_s.in_((HOUR_S, DAY_S)))
        connection.execute(full.values(until=fleet.first_hour(now)))
    add_up(database, now)
    with database.write() as connection:
        connection.execute(text("ANALYZE"))


def _write(database: Database, table: type[Base], rows: Iterator[dict[str, Any]]) -> None:
    """Writes rows that all have the same columns in the same order."""
    statement = insert(table).inline()
    while some := list(islice(rows, _AT_ONCE)):
        names, values = tuple(some[0]), [tuple(row.values()) for row in some]
        with database.write() as connection:
            if database.is_sqlite or table not in TABLES:
                write_rows(connection, statement, names, values)
            else:
                _copy(connection, table, names, values)


def _copy(
    connection: Connection, table: type[Base], names: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> None:
    """PostgreSQL's own way for many rows of numbers and names: there are millions of sums."""
    driver: Any = connection.connection.driver_connection
    into = f"COPY {table.__tablename__} ({', '.join(names)}) FROM STDIN"
    with driver.cursor() as cursor, cursor.copy(into) as copy:
        for row in rows:
            copy.write_row(row)


def _node(name: str, now: datetime) -> dict[str, Any]:
    empty = dict.fromkeys(("boot_id", "state", "agent_version", "device_version", "family"), "")
    moments = {"first_seen_at": now, "last_seen_at": now}
    return {"node_id": name, "facts": {}, "pictures": 0, "outbox_records": 0} | empty | moments


def _span(number: int, node: str, starts_at: datetime, span_s: int) -> dict[str, Any]:
    versions = {"device_version": "d" * 16, "cloud_version": "c" * 16, "policy": "spread"}
    return {"id": number, "starts_at": starts_at, "span_s": span_s, "node_id": node} | versions


def _sums(counts: list[int], _: np.random.Generator) -> Iterator[dict[str, Any]]:
    one = record_at(0)
    each = {n: getattr(one, n) for n in columns(SumRow) if hasattr(one, n)}
    each |= {"pictures": 1, "calls": 1, "fallbacks": 0}
    for index, count in enumerate(counts):
        yield {"span_id": index + 1} | {name: value * count for name, value in each.items()}


def _histograms(counts: list[int], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    kept: dict[tuple[int, int], list[dict[str, int]]] = {}
    for index, count in enumerate(counts):
        key = (index % _TEMPLATES, count)
        if key not in kept:
            kept[key] = list(_histogram(count, rng))
        for row in kept[key]:
            yield {"span_id": index + 1} | row


def _histogram(count: int, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    counted = {}
    for metric in METRICS:
        values = rng.gamma(2, size=count) * (9000 if metric == "bytes" else 1)
        counted[metric] = Counter(map(bucket_of, values.tolist()))
    for bucket in set().union(*counted.values()):
        yield {"bucket": bucket} | {metric: counted[metric][bucket] for metric in METRICS}


def _scores(counts: list[int], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    bins = np.unique(np.clip(rng.normal(47, 4, 400), 0, SCORE_BINS - 1).astype(int)).tolist()
    for index, count in enumerate(counts):
        for score_bin in bins:
            local, verified = count * 6, count * 2
            became = {"local": local, "verified": verified, "corrected": count // 2}
            yield {"span_id": index + 1, "score_bin": score_bin, "unverified": 0} | became


def _checks(counts: list[int], _: np.random.Generator) -> Iterator[dict[str, Any]]:
    for index, count in enumerate(counts):
        for region in range(_REGIONS):
            for score_bin in range(36, 36 + _LOCAL_BINS):
                found = {"checked": count, "mismatched": count // 9, "harm": 0.1 * count}
                key = {"span_id": index + 1, "region": region, "score_bin": score_bin}
                yield key | found | {"probability": 0.4 * count}


def _pictures(database: Database, fleet: Fleet, now: datetime) -> None:
    """Rows of the last two days, a tenth of them with a check."""
    age = timedelta(days=2) / max(fleet.rows, 1)
    for days_ago in range(3):
        with database.write() as connection:
            make_days(connection, now - timedelta(days=days_ago))
    written: list[dict[str, Any]] = []
    samples = [record_at(index) for index in range(256)]

    def rows() -> Iterator[dict[str, Any]]:
        for index in range(fleet.rows):
            node, one = f"n{index % fleet.nodes}", samples[index % len(samples)]
            said = one.model_dump(exclude={"type", "sampling", "detailed", "unseen"})
            moment = now - age * (fleet.rows - index)
            names = {"node_id": node, "generation_id": new_id(), "received_at": moment}
            row = said | one.sampling.model_dump() | names
            if index % 10 == 0:
                written.append(_check(row))
            yield row

    _write(database, GenerationRow, rows())
    _write(database, SpotCheckRow, iter(written))


def _check(row: dict[str, Any]) -> dict[str, Any]:
    positions = np.arange(0, TOKENS, TOKENS // _CHECKED)[:_CHECKED]
    local = np.frombuffer(row["decisions"], np.uint8)[positions] == 1
    return {
        "check_id": new_id(),
        "node_id": row["node_id"],
        "generation_id": row["generation_id"],
        "cloud_version": row["cloud_version"],
        "checked_at": row["received_at"],
        "is_counted": True,
        "positions": positions.astype("<u2").tobytes(),
        "local": local.astype(np.uint8).tobytes(),
        "matches": bytes([1]) * _CHECKED,
        "harms": bytes(2 * _CHECKED),
        "probabilities": bytes(2 * _CHECKED),
    }
