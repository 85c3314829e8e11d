"""The bench of records runs as its users run it, and says what it measured."""

from pathlib import Path

import pytest

from simulations.bench_records import bench
from simulations.bench_transport import mosquitto_program


@pytest.mark.broker
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_every_way_into_the_database_is_measured(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'hub.db'}"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")

    found = bench(url, records=100, batch=32)

    assert [each.subject for each in found[:2]] == ["bare executemany", "hub, bytes to commit"]
    assert len(found) == 2 + (mosquitto_program() is not None)
    assert found[0].ratio == found[0].processor == 1
    assert all(0 < each.ratio < 3 and each.records_per_s > 0 for each in found)
    assert found[1].disk_over_arrays > 0.5
