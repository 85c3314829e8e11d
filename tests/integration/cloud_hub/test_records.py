"""What is stored of pictures and nodes, on both databases."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from cloud_hub import nodes
from cloud_hub.notices import Notices
from cloud_hub.recording import read_batch
from cloud_hub.store import queries
from cloud_hub.store.database import Database
from cloud_hub.store.records import Rejected, Reported, store_batch, store_statuses
from cloud_hub.store.tables import GenerationRow, NodeRow, NodeStateRow, RejectedRecordRow
from fleet.buckets import ALPHA
from fleet.ids import NodeId
from fleet.protocol import topics
from fleet.protocol.codec import decode, encode
from fleet.protocol.messages import History, Unseen
from fleet.transport.base import Inbound
from tests.unit.cloud_hub.records import record, status

NOW = datetime(2026, 12, 1, 8, 0, tzinfo=UTC)
NODE = NodeId("n1")


def reported(node: str = "n1", **changes: Any) -> Reported:
    return Reported(NodeId(node), record(**changes), b"payload")


def count(database: Database, row: type[Any]) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(row)).scalar_one())


def test_a_record_comes_back_as_it_was_sent(database: Database) -> None:
    sent = record(threshold=-math.inf, caption="red heart")
    store_batch(database, [Reported(NODE, sent, b"")], [], NOW)

    with database.read() as connection:
        row = connection.execute(select(GenerationRow.__table__)).one()._mapping

    expected = (
        sent.model_dump(exclude={"type", "sampling", "detailed", "unseen"})
        | sent.sampling.model_dump()
    )
    assert {name: row[name] for name in expected} == expected
    assert (row["node_id"], row["received_at"]) == ("n1", NOW)


def test_a_record_that_comes_again_is_stored_once(database: Database) -> None:
    first = [reported(sequence=n) for n in (1, 2, 2)]
    later = [reported(sequence=n) for n in (2, 3)] + [reported("n2"), reported(boot_id="other")]

    for batch in (first, later, later):
        assert store_batch(database, batch, [], NOW) == []

    assert count(database, GenerationRow) == 5
    assert count(database, NodeRow) == 2


def test_a_value_that_the_database_refuses_is_set_aside_and_the_rest_stored(
    database: Database,
) -> None:
    bad = Reported(NODE, record(sequence=2, seed=1 << 70), b"bad")

    refused = store_batch(
        database,
        [reported(sequence=1), bad, reported(sequence=3)],
        [Rejected(NODE, b"x", "no")],
        NOW,
    )
    store_batch(database, [bad], [Rejected(NODE, b"x", "no")], NOW)

    assert [each.payload for each in refused] == [b"bad"]
    assert count(database, GenerationRow) == 2
    assert count(database, RejectedRecordRow) == 2


def test_a_record_that_is_set_aside_keeps_no_picture(database: Database) -> None:
    history = History(tokens=b"\1\0", local=b"\1")
    unseen = Unseen(family="toy", caption="red heart", start=0, share=1, history=history)
    sent = record(boot_id="No Boot", unseen=unseen)
    topic = topics.record(NODE)

    reading = read_batch([Inbound(topic, encode(sent), False, lambda: None)])
    store_batch(database, reading.reports, reading.rejected, NOW)

    with database.read() as connection:
        kept = connection.execute(select(RejectedRecordRow.payload)).scalar_one()
    assert decode(kept) == sent.model_copy(update={"unseen": None})


def test_a_nodes_states_are_kept_when_they_change(database: Database) -> None:
    said = [
        (status(), True),
        (status(pictures=4), False),
        (status(state="lost"), True),
        (status(boot_id="next"), True),
        (status(state="lost"), False),  # the will of a boot that is over
        (status(boot_id="next", state="stopped"), True),
    ]

    with database.write() as connection:
        first = store_statuses(connection, [(NODE, each) for each, _ in said[:3]], NOW)
        rest = store_statuses(connection, [(NODE, each) for each, _ in said[3:]], NOW)

    with database.read() as connection:
        row = connection.execute(select(NodeRow.__table__)).one()._mapping
        history = connection.execute(
            select(NodeStateRow.boot_id, NodeStateRow.state).order_by(NodeStateRow.id)
        ).all()
    assert first + rest == [(NODE, each) for each, is_change in said if is_change]
    assert (row["boot_id"], row["state"], row["facts"]) == (
        "next",
        "stopped",
        {"machine": "x86_64"},
    )
    assert [tuple(each) for each in history] == [
        ("boot", "ready"),
        ("boot", "lost"),
        ("next", "ready"),
        ("next", "stopped"),
    ]


def test_a_record_before_the_first_status_makes_a_node_of_unknown_state(
    database: Database,
) -> None:
    store_batch(database, [reported()], [], NOW)
    with database.write() as connection:
        store_statuses(connection, [(NODE, status())], NOW + timedelta(seconds=1))

    with database.read() as connection:
        row = connection.execute(select(NodeRow.__table__)).one()._mapping

    assert (row["state"], row["first_seen_at"]) == ("ready", NOW)


def test_the_table_of_devices_follows_its_definitions(database: Database) -> None:
    durations = [3.0, 1.0, 2.0, 10.0]
    batch = [
        reported(sequence=n, duration_s=duration, fallback="timeout" if n == 3 else "")
        for n, duration in enumerate(durations)
    ]
    batch += [reported("n2", tokens=0, local=0, verified=0, corrected=0, duration_s=0.0)]
    store_batch(database, batch, [], NOW)
    with database.write() as connection:
        store_statuses(connection, [(NodeId("n3"), status())], NOW)

    with database.read() as connection:
        one, two, three = queries.devices(connection)
        later = queries.devices(connection, NOW + timedelta(hours=1))

    assert (one.node_id, one.pictures, one.tokens, one.fallbacks) == ("n1", 4, 1024, 1)
    assert one.cloud_share == pytest.approx(30 / 256)
    assert one.local_share == pytest.approx(200 / 256)
    assert one.corrected_share == pytest.approx(4 / 41)
    assert (one.round_trips, one.bytes_up, one.bytes_down) == (16, 5000, 900)
    assert (one.latency_p50_s, one.latency_p95_s) == pytest.approx((2.0, 10.0), rel=ALPHA)
    assert one.tokens_per_s == pytest.approx(1024 / 16)
    assert (two.cloud_share, two.corrected_share, two.tokens_per_s) == (None, None, None)
    assert (three.node_id, three.pictures, three.state, three.latency_p50_s) == (
        "n3",
        0,
        "ready",
        None,
    )
    assert [row.pictures for row in later] == [0, 0, 0]


def test_the_latest_pictures_come_first(database: Database) -> None:
    for n in range(3):
        store_batch(database, [reported(sequence=n, tokens=n)], [], NOW + timedelta(seconds=n))

    with database.read() as connection:
        rows = queries.pictures(connection, NOW + timedelta(seconds=1), limit=5)

    assert [row.tokens for row in rows] == [2, 1]
    assert rows[0].received_at == NOW + timedelta(seconds=2)


def test_a_status_that_the_database_refuses_takes_no_other_with_it(database: Database) -> None:
    bad = status(pictures=1 << 40, device_version="v" * 70 + "\0")
    said = [(NodeId("n1"), status()), (NodeId("n2"), bad), (NodeId("n3"), status())]

    nodes._store(database, said, Notices(lambda: 0.0))

    with database.read() as connection:
        known = set(connection.execute(select(NodeRow.node_id)).scalars())
    assert {"n1", "n3"} <= known
