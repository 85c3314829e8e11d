"""The sums are those of the rows, whatever came in whatever batches, on both databases."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from cloud_hub.store.database import Database
from cloud_hub.store.records import Reported, store_batch
from cloud_hub.store.sums import columns
from cloud_hub.store.tables import GenerationRow, HistogramRow, ScoreSumRow, SpanRow, SumRow
from fleet.buckets import ALPHA, ZERO, bucket_of, regions, value_of
from fleet.ids import NodeId
from tests.unit.cloud_hub.records import record

NOW = datetime(2026, 12, 1, 8, 59, 59, tzinfo=UTC)


def pictures(count: int, seed: int = 0) -> list[Reported]:
    """Pictures of three nodes, two versions and two policies, with arrays of their own."""
    rng = np.random.default_rng(seed)
    return [Reported(NodeId(f"n{index % 3}"), _record(rng, index), b"") for index in range(count)]


def _record(rng: np.random.Generator, index: int) -> Any:
    decisions = rng.integers(0, 5, 64).astype(np.uint8)
    counts = Counter(decisions.tolist())
    return record(
        sequence=index,
        generation_id=f"g{index}",
        device_version=f"d{index % 2}",
        policy=("spread", "entropy")[index % 2],
        tokens=64,
        prefix=counts[0],
        local=counts[1],
        verified=counts[2] + counts[3],
        corrected=counts[3],
        unverified=counts[4],
        forwards=int(rng.integers(0, 3)),
        duration_s=float(rng.exponential(2)) if index % 5 else 0.0,
        fallback="timeout" if index % 4 == 0 else "",
        scores=rng.integers(0, 256, 64).astype(np.uint8).tobytes(),
        decisions=decisions.tobytes(),
        confidences=bytes(64),
    )


def test_sums_are_those_of_the_rows_and_repeats_add_nothing(database: Database) -> None:
    reports = pictures(40)
    for batch in (reports[:7], reports[3:20], reports[20:], reports):
        store_batch(database, batch, [], NOW)

    with database.read() as connection:
        rows = connection.execute(select(GenerationRow.__table__)).all()
        summed = connection.execute(select(SumRow.__table__)).all()
        scored = connection.execute(select(ScoreSumRow.__table__)).all()
    assert len(rows) == 40
    for name in set(columns(SumRow)) - {"pictures", "calls", "fallbacks"}:
        assert sum(getattr(row, name) for row in summed) == pytest.approx(
            sum(getattr(row, name) for row in rows)
        )
    assert sum(row.pictures for row in summed) == 40
    assert sum(row.calls for row in summed) == sum(row.forwards > 0 for row in rows)
    assert sum(row.fallbacks for row in summed) == 10
    for name in columns(ScoreSumRow):
        assert sum(getattr(row, name) for row in scored) == sum(getattr(row, name) for row in rows)


def test_an_hour_of_hub_time_has_its_own_rows(database: Database) -> None:
    store_batch(database, pictures(3)[:1], [], NOW)
    store_batch(database, pictures(6)[3:4], [], NOW + timedelta(seconds=1))

    with database.read() as connection:
        starts = connection.execute(select(SpanRow.starts_at).order_by(SpanRow.starts_at)).scalars()
        assert [each.hour for each in starts] == [8, 9]


@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
def test_a_quantile_from_buckets_is_within_its_stated_error(
    database: Database, quantile: float
) -> None:
    store_batch(database, pictures(60), [], NOW)

    with database.read() as connection:
        exact = sorted(connection.execute(select(GenerationRow.duration_s)).scalars())
        counted = connection.execute(
            select(HistogramRow.bucket, func.sum(HistogramRow.duration_s))
            .group_by(HistogramRow.bucket)
            .order_by(HistogramRow.bucket)
        ).all()
    rank = int(np.ceil(quantile * 60))
    reached = np.flatnonzero(np.cumsum([int(n) for _, n in counted]) >= rank)[0]

    assert value_of(counted[reached][0]) == pytest.approx(exact[rank - 1], rel=ALPHA)


def test_buckets_hold_every_value_within_alpha() -> None:
    for value in np.geomspace(1.1e-9, 1e9, 5000).tolist():
        assert abs(value_of(bucket_of(value)) / value - 1) <= ALPHA * (1 + 1e-9)
    assert (bucket_of(0.0), value_of(ZERO)) == (ZERO, 0.0)


def test_regions_are_four_by_four_of_any_square() -> None:
    assert (
        regions(np.arange(256), 256).reshape(16, 16)[::4, ::4].tolist()
        == np.arange(16).reshape(4, 4).tolist()
    )
    assert Counter(regions(np.arange(576), 576).tolist()) == dict.fromkeys(range(16), 36)
    assert regions(np.arange(3), 3).max() < 16
