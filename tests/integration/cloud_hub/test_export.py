"""An export: whole, again and again, while records come in; read as analysts read it."""

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal

from cloud_hub.cli import main
from cloud_hub.export import export
from cloud_hub.store import answers
from cloud_hub.store.database import Database
from cloud_hub.store.periods import Period
from cloud_hub.store.records import Reported, store_batch
from fleet.analysis import Log, heat_map, reliability_diagram
from fleet.errors import InvalidInputError
from fleet.ids import NodeId
from tests.integration.cloud_hub.test_definitions import NOW, TOKENS
from tests.integration.cloud_hub.test_definitions import Log as RandomLog
from tests.unit.cloud_hub.records import record


def counted(folder: Path, table: str) -> int:
    """Rows, by DuckDB."""
    with duckdb.connect() as connection:
        return len(connection.read_parquet(f"{folder}/{table}/**/*.parquet").fetchall())


def watermark(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "watermark.json").read_text())
    return found


@pytest.mark.parametrize("takes_days", [False, True])
def test_an_export_holds_what_the_database_holds(
    database: Database, tmp_path: Path, takes_days: bool
) -> None:
    RandomLog(database, 1, takes_days=takes_days)
    folder = tmp_path / "log"

    export(database, folder)

    log = Log(folder)
    for by in ([], ["node", "version"], ["day", "policy"]):
        with database.read() as connection:
            truth = answers.acceptance(connection, by, Period())
            checks = answers.spot_checks(connection, by, Period())
            latency = answers.latency(connection, by, Period())
        assert [pytest.approx(row) for row in truth.rows] == log.acceptance(by).rows()
        assert [pytest.approx(row) for row in checks.rows] == log.spot_checks(by).rows()
        assert latency.rows == log.latency(by).rows()
    mark = watermark(folder)
    assert counted(folder, "generation") == sum(mark["rows"]["generation"].values()) == 50
    pictures = log.pictures().collect()
    assert pictures["received_at"].dtype == pl.Datetime("us", "UTC")
    assert (
        pl.read_parquet_metadata(next(folder.glob("generation/*/*.parquet")))["ciar_fleet.schema"]
        == mark["schema"]
    )


def test_tokens_and_checks_explode_to_one_row_each(database: Database, tmp_path: Path) -> None:
    random = RandomLog(database, 2)
    export(database, tmp_path)
    log = Log(tmp_path)

    tokens, checks = log.tokens(), log.checks()

    assert len(tokens) == 50 * TOKENS
    counts = dict(tokens["decision"].value_counts().iter_rows())
    assert counts["local"] == sum(report.record.local for report in random.reports)
    assert counts["corrected"] == sum(report.record.corrected for report in random.reports)
    assert len(checks) == sum(len(check.positions) for check in random.checks)
    one = tokens.filter(pl.col("generation_id") == "g7")
    for figure in (heat_map(one), reliability_diagram(checks)):
        figure.savefig(tmp_path / "figure.png")
    assert heat_map(one.head(0)) is not None
    assert reliability_diagram(checks.head(0)) is not None


def test_an_export_again_writes_what_is_new_and_late(database: Database, tmp_path: Path) -> None:
    RandomLog(database, 3)
    export(database, tmp_path)
    first = {path: path.stat().st_ino for path in tmp_path.glob("generation/**/*.parquet")}

    same = export(database, tmp_path, everything=True)
    late = [Reported(NodeId("n9"), record(boot_id="late", sequence=n), b"") for n in range(3)]
    store_batch(database, late[:1], [], NOW)
    store_batch(database, late[1:], [], NOW + timedelta(hours=3))
    export(database, tmp_path, everything=True)

    assert counted(tmp_path, "generation") == 53
    assert {path: path.stat().st_ino for path in first} != first
    assert same.rows < 53 + 3000
    assert not list(tmp_path.rglob("*.partial"))


def test_readers_see_whole_files_while_records_come_in(database: Database, tmp_path: Path) -> None:
    stop, stored = threading.Event(), [0]

    def ingest() -> None:
        while not stop.is_set() and stored[0] < 400:
            first = stored[0]
            batch = [
                Reported(NodeId("n1"), record(sequence=n, generation_id=f"g{n}"), b"")
                for n in range(first, first + 8)
            ]
            store_batch(database, batch, [], NOW)
            stored[0] += 8

    thread = threading.Thread(target=ingest)
    thread.start()
    try:
        for _ in range(6):
            export(database, tmp_path, everything=True)
            if (tmp_path / "generation").exists():
                known = sum(watermark(tmp_path)["rows"].get("generation", {}).values())
                assert counted(tmp_path, "generation") == known
    finally:
        stop.set()
        thread.join()
    export(database, tmp_path, everything=True)

    assert counted(tmp_path, "generation") == stored[0]


def test_one_folder_has_one_schema(database: Database, tmp_path: Path) -> None:
    (tmp_path / "watermark.json").write_text(
        '{"schema": "0001.0", "until": "2026-12-01T00:00:00+00:00", "rows": {}}'
    )

    with pytest.raises(InvalidInputError, match="new folder"):
        export(database, tmp_path)
    with pytest.raises(InvalidInputError, match="run `cloud_hub export`"):
        Log(tmp_path / "nowhere")


def test_the_command_exports(database: Database, url: str, tmp_path: Path) -> None:
    RandomLog(database, 4, count=5)

    done = CliRunner().invoke(
        main, ["export", str(tmp_path / "log")], env={"CLOUD_HUB_STORE__URL": url}
    )

    assert done.exit_code == 0, done.output
    assert "complete until" in done.stdout
    frame = Log(tmp_path / "log").table("node").collect()
    assert_frame_equal(
        frame.select("node_id").sort("node_id"), pl.DataFrame({"node_id": sorted(frame["node_id"])})
    )
