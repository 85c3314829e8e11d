"""Rows a token: of the pictures that ask for it, once, for a while, as analysts read them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, text

from cloud_hub.export import export
from cloud_hub.store.care import Keep, care
from cloud_hub.store.database import Database
from cloud_hub.store.records import Reported, store_batch
from cloud_hub.store.tables import TokenRow
from fleet.analysis import Log
from fleet.definitions import DECISIONS
from fleet.ids import NodeId
from fleet.protocol.arrays import pack_scores
from tests.unit.cloud_hub.records import record

NOW = datetime(2026, 12, 1, 8, 30, tzinfo=UTC)
SCORES = np.geomspace(1e-3, 10, 256)
CODES = [0] * 15 + [1] * 200 + [2] * 37 + [3] * 4


def picture(name: str, sequence: int, **changes: Any) -> Reported:
    arrays = {"scores": pack_scores(SCORES), "decisions": bytes(CODES), "detailed": True}
    fields = arrays | {"generation_id": name, "sequence": sequence} | changes
    return Reported(NodeId("n1"), record(**fields), b"")


def count(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(TokenRow)).scalar_one())


def test_a_detailed_picture_has_a_row_a_token_once(database: Database) -> None:
    pictures = [picture("g1", 1), picture("g2", 2, detailed=False)]
    for _ in range(2):
        store_batch(database, pictures, [], NOW)

    names, rows = database.select("SELECT * FROM v_token ORDER BY position", 999)

    assert len(rows) == 256
    found = [dict(zip(names, row, strict=True)) for row in rows]
    assert {row["generation_id"] for row in found} == {"g1"}
    assert [row["position"] for row in found] == list(range(256))
    assert [row["decision"] for row in found] == [DECISIONS[code] for code in CODES]
    assert [row["score"] for row in found] == pytest.approx(SCORES.tolist(), rel=0.07)


@pytest.mark.parametrize(
    "arrays",
    [
        {"scores": b"", "decisions": b"", "confidences": b""},
        {"scores": bytes(255)},
        {"scores": bytes(5000), "decisions": bytes(5000), "confidences": bytes(5000)},
    ],
)
def test_arrays_that_do_not_fit_give_no_rows_and_the_picture_stands(
    database: Database, arrays: dict[str, bytes]
) -> None:
    assert store_batch(database, [picture("g1", 1, **arrays)], [], NOW) == []

    assert count(database) == 0
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM v_picture")).scalar_one() == 1


def test_two_records_of_one_picture_do_not_hinder_each_other(database: Database) -> None:
    assert store_batch(database, [picture("g1", 1), picture("g1", 2)], [], NOW) == []

    assert count(database) == 256


def test_token_rows_go_first_and_are_exported_until_then(
    database: Database, tmp_path: Path
) -> None:
    store_batch(database, [picture("g1", 1)], [], NOW)
    long = timedelta(days=1000)
    keep = Keep(pictures=long, tokens=timedelta(hours=72), hours=long, rejected=9, bytes=None)

    export(database, tmp_path)
    kept = care(database, keep, NOW + timedelta(hours=71))["token"]
    gone = care(database, keep, NOW + timedelta(hours=73))["token"]

    assert (kept, gone) == (0, 256)
    assert count(database) == 0
    log = Log(tmp_path)
    rows = log.table("token").select("position", "score", "confidence").collect()
    assert rows.sort("position").equals(log.tokens().select("position", "score", "confidence"))
