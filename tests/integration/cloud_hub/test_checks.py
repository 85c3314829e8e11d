"""Spot checks in the database: counted once, whichever comes first, on both databases."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import select

from cloud_hub.cli import main
from cloud_hub.store.checks import Check, checked_pictures, count_checks, store_checks
from cloud_hub.store.database import Database
from cloud_hub.store.records import Reported, store_batch
from cloud_hub.store.revision import migrate
from cloud_hub.store.sums import rows_of
from cloud_hub.store.tables import CheckSumRow
from fleet.ids import GenerationId, NodeId
from fleet.protocol.arrays import pack_scores
from tests.unit.cloud_hub.records import record

NOW = datetime(2026, 12, 1, 8, 30, tzinfo=UTC)
HOUR = datetime(2026, 12, 1, 8, tzinfo=UTC)
SCORES = np.geomspace(1e-3, 10, 256)
DECISIONS = bytes([0] * 15 + [1] * 200 + [2] * 37 + [3] * 4)  # as the record's counts say


def picture(**changes: Any) -> Reported:
    arrays = {"scores": pack_scores(SCORES), "decisions": DECISIONS}
    return Reported(NodeId("n1"), record(**(arrays | changes)), b"")


def check(check_id: str, positions: list[int], **changes: Any) -> Check:
    """Drafts at positions, of which every third does not match."""
    count = len(positions)
    at = np.array(positions)
    fields: dict[str, Any] = {
        "node": "n1",
        "generation": "g1",
        "cloud_version": "cloud",
        "positions": at,
        "local": (at >= 15) & (at < 215),
        "matches": at % 3 > 0,
        "harms": np.where(at % 3 > 0, 0.0, 0.5),
        "probabilities": np.full(count, 0.25),
    }
    return Check(check_id, **(fields | changes))


def write(database: Database, *checks: Check) -> int:
    with database.write() as connection:
        store_checks(connection, checks, NOW)
        return count_checks(connection)


def sums(database: Database) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(select(rows_of(CheckSumRow))))


def test_a_check_waits_for_its_record_and_is_counted_once(database: Database) -> None:
    assert write(database, check("c1", [20, 21, 22, 230])) == 0

    store_batch(database, [picture()], [], NOW)
    assert write(database, check("c1", [20, 21, 22, 230])) == 1
    assert write(database) == 0

    rows = sums(database)
    assert sum(row.checked for row in rows) == 3  # 230 was judged, not accepted alone
    assert sum(row.mismatched for row in rows) == 1
    assert sum(row.harm for row in rows) == 0.5
    assert sum(row.probability for row in rows) == 0.75
    assert {(row.starts_at, row.span_s, row.node_id, row.policy) for row in rows} == {
        (HOUR, 3600, "n1", "uncertainty")
    }
    assert {row.region for row in rows} == {1}  # row 1 of 16, columns 4 to 6


def test_a_position_that_is_checked_again_counts_once(database: Database) -> None:
    store_batch(database, [picture()], [], NOW)

    write(database, check("c1", [20, 21]))
    write(database, check("c2", [21, 22, 22]), check("c3", [22, 40]))

    assert sum(row.checked for row in sums(database)) == 4
    with database.read() as connection:
        (found,) = checked_pictures(connection)
    assert found.positions.tolist() == [20, 21, 22, 40]
    assert found.matches.tolist() == [True, False, True, True]
    assert (found.tokens, found.local_tokens) == (256, 200)
    assert bytes(found.scores) == bytes(pack_scores(SCORES)[i] for i in (20, 21, 22, 40))


def test_what_the_record_tells_otherwise_is_left_out(database: Database) -> None:
    """A check of a node that claims another picture, or of a branch that fell."""
    store_batch(database, [picture()], [], NOW)

    write(
        database, check("c1", [20, 300], node="n2"), check("c2", [230, 300], local=np.ones(2, bool))
    )

    assert sums(database) == []
    with database.read() as connection:
        assert [len(each.positions) for each in checked_pictures(connection)] == [0]


def test_checked_pictures_are_chosen_by_node_version_policy_and_time(database: Database) -> None:
    store_batch(
        database, [picture(), picture(sequence=2, generation_id="g2", policy="spread")], [], NOW
    )
    write(database, check("c1", [20]), check("c2", [20], generation="g2"))

    with database.read() as connection:

        def names(**wanted: Any) -> list[str]:
            return [each.generation for each in checked_pictures(connection, **wanted)]

        assert names() == ["g1", "g2"]
        assert names(policy="spread") == ["g2"]
        assert names(node="n2") == names(device_version="other") == []
        assert names(since=datetime(2026, 12, 2, tzinfo=UTC)) == []


def test_calibrate_reads_the_checks_and_says_what_devices_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_HUB_DATA_DIR", str(tmp_path))
    with Database(f"sqlite:///{tmp_path / 'hub.db'}") as database:
        migrate(database)
        names = [GenerationId(f"g{index}") for index in range(60)]
        reports = [picture(sequence=i + 1, generation_id=name) for i, name in enumerate(names)]
        store_batch(database, reports, [], NOW)
        positions = list(range(16, 256, 5))
        write(database, *(check(f"c{name}", positions, generation=name) for name in names))
    command = ["calibrate", "--limit", "0.1", "--policy", "uncertainty"]

    said = CliRunner().invoke(main, command)
    data = CliRunner().invoke(main, [*command, "--json"])
    none = CliRunner().invoke(main, ["calibrate", "--policy", "spread"])

    assert said.exit_code == data.exit_code == 0, said.output
    found = json.loads(data.output)
    assert found["pictures"] == 60
    # A third of all checked tokens mismatch, so a third of what stays local is lost.
    assert 0.05 < found["risk"] <= 0.1
    assert f"EDGE_AGENT_GENERATION__THRESHOLD={found['threshold']:.6g}" in said.output
    assert none.exit_code == 2
    assert "no picture was checked" in none.output
