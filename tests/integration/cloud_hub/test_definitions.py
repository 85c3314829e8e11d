"""One definition, one number: rows, sums, views, commands and Prometheus agree on random logs."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import select, text

from cloud_hub.cli import main
from cloud_hub.store import answers
from cloud_hub.store.adding_up import add_up
from cloud_hub.store.checks import Check, count_checks, store_checks
from cloud_hub.store.database import Database
from cloud_hub.store.exposition import exposition
from cloud_hub.store.histograms import by_metric
from cloud_hub.store.periods import Period
from cloud_hub.store.records import Reported, store_batch
from cloud_hub.store.sums import columns
from cloud_hub.store.tables import SumRow
from fleet.buckets import ALPHA, bucket_of, value_of
from fleet.definitions import RATIOS, accepted
from fleet.ids import NodeId
from fleet.protocol.messages import GenerationRecord
from tests.unit.cloud_hub.records import record

# `query drift` looks at the last day.
NOW = datetime.now(UTC).replace(minute=30, second=0, microsecond=0) - timedelta(hours=1)
TOKENS = 64
DERIVED = {"pictures", "calls", "fallbacks"}
# Of those that PostgreSQL keeps as their bytes, and others, some as long as such bytes.
BOOTS = ("boot", "b-of-16-letters-", "0a" * 16)
HASHES = ("h", "ab" * 32, "AB" * 16, "ü" * 8)
METRICS: dict[str, Callable[[GenerationRecord], float]] = {
    **{n: attrgetter(n) for n in ("duration_s", "device_s", "wait_s", "queue_s", "forward_s")},
    "bytes": lambda record: record.bytes_up + record.bytes_down,
}


class Log:
    """A random log, stored in random batches, some of them twice, with checks before and after.

    If it takes days, these are over the end of a month, and sums are added up now and then.
    """

    def __init__(
        self, database: Database, seed: int, count: int = 50, *, takes_days: bool = False
    ) -> None:
        self.database = database
        self.rng = np.random.default_rng(seed)
        self.takes_days = takes_days
        self.reports = [self._report(index) for index in range(count)]
        self.checks = [self._check(index) for index in range(count)]
        self._store()

    def _report(self, index: int) -> Reported:
        rng = self.rng
        decisions = rng.choice(5, TOKENS, p=[0.1, 0.6, 0.2, 0.05, 0.05]).astype(np.uint8)
        count = Counter(decisions.tolist())
        forwards = int(rng.integers(0, 5))
        fields: dict[str, Any] = {
            "sequence": index,
            "generation_id": _picture(index),
            "device_version": f"d{rng.integers(2)}",
            "cloud_version": "c1" if forwards else "",
            "policy": ("spread", "verify_all")[int(rng.integers(2))],
            "tokens": TOKENS,
            "prefix": count[0],
            "local": count[1],
            "verified": count[2] + count[3],
            "corrected": count[3],
            "unverified": count[4],
            "forwards": forwards,
            "fallback": ("", "timeout")[int(rng.integers(2))],
            "scores": rng.integers(100, 200, TOKENS).astype(np.uint8).tobytes(),
            "decisions": decisions.tobytes(),
            "confidences": bytes(TOKENS),
            "boot_id": BOOTS[int(rng.integers(len(BOOTS)))],
            "caption_hash": HASHES[int(rng.integers(len(HASHES)))],
        }
        fields |= {n: int(rng.integers(0, 9000)) for n in ("bytes_up", "bytes_down", "wasted")}
        fields |= {n: float(rng.gamma(2)) for n in ("duration_s", "wait_s", "queue_s")}
        return Reported(NodeId(f"n{rng.integers(3)}"), record(**fields), b"")

    def _check(self, index: int) -> Check:
        report = self.reports[index]
        positions = np.flatnonzero(self.rng.random(TOKENS) < 0.4)
        local = np.frombuffer(report.record.decisions, np.uint8)[positions] == 1
        matches = self.rng.random(len(positions)) < 0.8
        return Check(
            check_id=f"c{index}",
            node=report.node,
            generation=report.record.generation_id,
            cloud_version="c1",
            positions=positions,
            local=local,
            matches=matches,
            harms=np.where(matches, 0.0, 0.5),
            probabilities=np.full(len(positions), 0.5),
        )

    def _store(self) -> None:
        order = self.rng.permutation(len(self.reports))
        now = datetime(2026, 1, 30, 20, 30, tzinfo=UTC) if self.takes_days else NOW
        for part in np.array_split(order, 6):
            batch = [self.reports[index] for index in part]
            store_batch(self.database, batch, [], now)
            store_batch(self.database, batch[:3], [], now + timedelta(minutes=5))
            with self.database.write() as connection:
                store_checks(connection, [self.checks[index] for index in part[::-1]], now)
                count_checks(connection)
            if self.takes_days:
                now += timedelta(hours=int(self.rng.integers(30)))
                if self.rng.random() < 0.6:
                    add_up(self.database, now)
        with self.database.write() as connection:
            while count_checks(connection):
                pass

    def groups(self, names: Sequence[str]) -> dict[tuple[str, ...], list[GenerationRecord]]:
        found: defaultdict[tuple[str, ...], list[GenerationRecord]] = defaultdict(list)
        for report in self.reports:
            key = {"node": str(report.node), "version": str(report.record.device_version)}
            found[tuple(key[name] for name in names)].append(report.record)
        return found


def _picture(index: int) -> str:
    """An id: some are made as agents make them."""
    return f"{index:032x}" if index % 2 else f"g{index}"


def expected(records: list[GenerationRecord]) -> dict[str, float]:
    """The sums of some pictures, straight from the records."""
    sums = {
        n: float(sum(getattr(r, n) for r in records)) for n in columns(SumRow) if n not in DERIVED
    }
    called = sum(each.forwards > 0 for each in records)
    fell = sum(each.fallback != "" for each in records)
    return sums | {"pictures": len(records), "calls": called, "fallbacks": fell}


@pytest.mark.parametrize("takes_days", [False, True])
def test_acceptance_is_one_number_wherever_it_is_read(database: Database, takes_days: bool) -> None:
    log = Log(database, int(takes_days), takes_days=takes_days)
    with database.read() as connection:
        api = answers.acceptance(connection, ["node", "version"], Period())
        view = connection.execute(
            text(
                "SELECT node_id, device_version, SUM(local) AS l, SUM(tokens) AS t"
                " FROM v_acceptance GROUP BY 1, 2 ORDER BY 1, 2"
            )
        ).all()
        by_row = {
            (row.node_id, row.device_version, row.cloud_version, row.policy): row._mapping
            for row in connection.execute(text("SELECT * FROM v_acceptance"))
        }
    truth = log.groups(["node", "version"])
    assert [row[:2] for row in api.rows] == sorted(truth)
    for found in api.records():
        sums = expected(truth[found["node"], found["version"]])
        assert found["pictures"] == sums["pictures"]
        for ratio in RATIOS:
            assert found[ratio.name] == pytest.approx(ratio.of(sums)), ratio.name
    assert [(row.node_id, row.device_version) for row in view] == sorted(truth)
    for node, version, local, tokens in view:
        assert float(local / tokens) == pytest.approx(_of(api, node, version)["local_share"])
    if takes_days:  # then a row is a day's
        return
    for (node, version, cloud, policy), row in by_row.items():
        records = [
            r for r in truth[node, version] if (r.cloud_version, r.policy) == (cloud, policy)
        ]
        for ratio in RATIOS:
            name = f"mean_{ratio.name}" if ratio.name in columns(SumRow) else ratio.name
            shown = row[name]
            value = ratio.of(expected(records))
            assert shown is None if value is None else float(shown) == pytest.approx(value), name


def _of(answer: answers.Answer, node: str, version: str) -> dict[str, Any]:
    return next(r for r in answer.records() if (r["node"], r["version"]) == (node, version))


@pytest.mark.parametrize("takes_days", [False, True])
def test_quantiles_are_within_the_stated_error_of_the_rows_own(
    database: Database, takes_days: bool
) -> None:
    log = Log(database, 5, takes_days=takes_days)
    with database.read() as connection:
        found = answers.latency(connection, ["node"], Period()).records()
        rows = connection.execute(text("SELECT node_id, duration_s, wait_s FROM v_picture")).all()
        counted = connection.execute(
            text(
                "SELECT value, SUM(pictures) FROM v_latency WHERE metric = 'duration_s'"
                " GROUP BY value ORDER BY value"
            )
        ).all()
    assert sum(int(n) for _, n in counted) == len(log.reports)
    for each in found:
        if each["metric"] not in {"duration_s", "wait_s"}:
            continue
        values = sorted(getattr(r, each["metric"]) for r in rows if r.node_id == each["node"])
        assert each["pictures"] == len(values)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            exact = values[math.ceil(share * len(values)) - 1]
            assert each[name] == pytest.approx(exact, rel=ALPHA * 1.001)


@pytest.mark.parametrize("seed", [5, 6])
def test_histograms_are_those_of_the_records_in_the_view_and_in_exports(
    database: Database, seed: int
) -> None:
    log = Log(database, seed)
    truth = Counter(
        (report.node, report.record.device_version, metric, bucket_of(of(report.record)))
        for report in log.reports
        for metric, of in METRICS.items()
    )
    with database.read() as connection:
        view = connection.execute(
            text(
                "SELECT node_id, device_version, metric, bucket, SUM(pictures) FROM v_latency"
                " GROUP BY node_id, device_version, metric, bucket"
            )
        ).all()
        values = connection.execute(text("SELECT DISTINCT bucket, value FROM v_latency")).all()
        exported = connection.execute(select(by_metric())).all()
    assert {tuple(key): int(count) for *key, count in view} == truth
    assert all(float(value) == pytest.approx(value_of(bucket)) for bucket, value in values)
    assert min(row.pictures for row in exported) > 0
    found: Counter[tuple[Any, ...]] = Counter()
    for row in exported:
        found[row.node_id, row.device_version, row.metric, row.bucket] += row.pictures
    assert found == truth


def test_a_picture_is_shown_with_the_texts_that_its_record_had(database: Database) -> None:
    log = Log(database, 8)

    names, rows = database.select(
        "SELECT generation_id, boot_id, caption_hash FROM v_picture ORDER BY id", 99
    )

    assert names == ("generation_id", "boot_id", "caption_hash")
    said = (report.record for report in log.reports)
    assert sorted(rows) == sorted((r.generation_id, r.boot_id, r.caption_hash) for r in said)


@pytest.mark.parametrize("takes_days", [False, True])
def test_false_accepts_are_those_of_the_checks(database: Database, takes_days: bool) -> None:
    log = Log(database, 7, takes_days=takes_days)
    truth: Counter[str] = Counter()
    for check in log.checks:
        truth[f"{check.node} checked"] += int(check.local.sum())
        truth[f"{check.node} mismatched"] += int((check.local & ~check.matches).sum())
    with database.read() as connection:
        found = answers.spot_checks(connection, ["node"], Period()).records()
        view = connection.execute(
            text("SELECT node_id, SUM(checked), SUM(mismatched) FROM v_spot_check GROUP BY 1")
        ).all()
        single = connection.execute(text("SELECT * FROM v_spot_check")).all()
    for each in found:
        assert each["checked"] == truth[f"{each['node']} checked"]
        assert each["mismatched"] == truth[f"{each['node']} mismatched"]
        assert each["low"] <= each["false_accept_rate"] <= each["high"]
        assert each["harm"] == pytest.approx(0.5 * each["false_accept_rate"])
    assert {n: (int(c), int(m)) for n, c, m in view} == {
        e["node"]: (e["checked"], e["mismatched"]) for e in found
    }
    for row in single:
        rates = accepted(int(row.checked), int(row.mismatched), 0.0)
        assert (row.false_accept_rate, row.low, row.high) == pytest.approx(
            (rates.false_accept_rate, rates.low, rates.high), abs=1e-9
        )


@pytest.mark.parametrize("takes_days", [False, True])
def test_reliability_and_drift_follow_from_the_tokens(database: Database, takes_days: bool) -> None:
    log = Log(database, 9, takes_days=takes_days)
    with database.read() as connection:
        found = answers.reliability(connection, [], Period()).records()
        same = answers.drift(connection, ["node"], Period(), Period()).records()
    judged = sum(report.record.verified for report in log.reports)
    stood = judged - sum(report.record.corrected for report in log.reports)
    assert sum(each["judged"] for each in found) == judged
    assert sum(round(each["judged"] * (each["match_rate"] or 0)) for each in found) == stood
    assert sum(each["checked"] for each in found) == sum(int(c.local.sum()) for c in log.checks)
    assert [(each["stability_index"], each["calibration_error"]) for each in same] == [
        (0.0, 0.0)
    ] * 3


@pytest.mark.parametrize("takes_days", [False, True])
def test_prometheus_counts_what_the_sums_count(database: Database, takes_days: bool) -> None:
    log = Log(database, 11, takes_days=takes_days)
    with database.read() as connection:
        lines = exposition(connection)
    sums = expected([report.record for report in log.reports])
    for name, value in sums.items():
        found = re.findall(rf"^fleet_pictures_{name}_total{{.*}} (\S+)$", lines, re.MULTILINE)
        assert sum(map(float, found)) == pytest.approx(value), name
    assert "n0" not in lines  # no series a device


def test_the_command_line_prints_the_same_numbers(
    tmp_path: Path, database: Database, url: str
) -> None:
    Log(database, 13)
    environment = {"CLOUD_HUB_STORE__URL": url}
    with database.read() as connection:
        truth = answers.acceptance(connection, ["node", "version"], Period()).records()

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["query", *arguments], env=environment)
        assert done.exit_code == 0, done.output
        return done.stdout

    rows = json.loads(run("acceptance", "--by", "node,version", "--json"))
    lines = run("acceptance", "--by", "node,version", "--csv").splitlines()
    table = run("acceptance", "--by", "node,version")
    assert rows == truth
    assert lines[0].startswith("node,version,pictures,tokens,local_share")
    assert [float(line.split(",")[4]) for line in lines[1:]] == [
        row["local_share"] for row in truth
    ]
    assert all(f"{row['local_share']:.1%}" in table for row in truth)
    for question in ("latency", "checks", "reliability", "drift", "devices", "generations"):
        assert json.loads(run(question, "--json"))
    counted = run(
        "sql", "SELECT SUM(pictures) AS n FROM v_acceptance WHERE node_id LIKE 'n%'", "--json"
    )
    assert int(json.loads(counted)[0]["n"]) == 50


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM node", "cannot be answered"),
        ("SELECT 1; DELETE FROM node", "one SQL statement"),
        ("SELECT nothing FROM nowhere", "cannot be answered"),
        ("", "one SQL statement"),
    ],
)
def test_sql_reads_only(database: Database, url: str, statement: str, says: str) -> None:
    Log(database, 1, count=4)
    done = CliRunner().invoke(main, ["query", "sql", statement], env={"CLOUD_HUB_STORE__URL": url})

    assert done.exit_code == 2
    assert says in done.stderr
    with database.read() as connection:
        assert connection.execute(text("SELECT COUNT(*) FROM generation")).scalar() == 4


def test_an_unknown_group_is_a_sentence(database: Database, url: str) -> None:
    done = CliRunner().invoke(
        main, ["query", "latency", "--by", "moon"], env={"CLOUD_HUB_STORE__URL": url}
    )

    assert done.exit_code == 2
    assert "take some of node, version" in done.stderr
