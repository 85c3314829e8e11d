"""The bench of questions fills a database that all of them understand."""

from pathlib import Path

from cloud_hub.store import answers, views
from cloud_hub.store.database import Database
from cloud_hub.store.periods import Period
from simulations.bench_queries import Fleet, bench

FLEET = Fleet(nodes=2, pictures=2000, rows=20, days=3, hourly=1)


def test_every_question_is_asked_of_as_much_as_was_wanted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'hub.db'}"

    asked = {each.subject: each for each in bench(url, FLEET, repeats=1)}

    assert set(views.names()) <= set(asked)
    assert all(each.p95_s > 0 for each in asked.values())
    assert asked["acceptance by node, 7 days"].rows == FLEET.nodes
    assert asked["generations"].rows == FLEET.rows
    with Database(url) as database, database.read() as connection:
        (found,) = answers.acceptance(connection, [], Period()).records()
        latency = answers.latency(connection, [], Period()).records()
        checks = answers.spot_checks(connection, [], Period()).records()[0]
    assert abs(found["pictures"] - FLEET.pictures) < 0.1 * FLEET.pictures
    (seconds,) = (row for row in latency if row["metric"] == "duration_s")
    assert 0.5 < seconds["p50"] < 3
    assert checks["checked"] > 0
