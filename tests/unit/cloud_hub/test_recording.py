"""What no database would take is set aside with a sentence, and its sender gets a receipt."""

from typing import Any

import pytest

from cloud_hub.recording import read_batch
from fleet.ids import NodeId
from fleet.protocol import topics
from fleet.protocol.codec import encode
from fleet.transport.base import Inbound
from tests.unit.cloud_hub.records import record


def inbound(**changes: Any) -> Inbound:
    return Inbound(
        topics.record(NodeId("n1")), encode(record(**changes)), False, lambda: None, qos=1
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 1 << 63}, "seed does not fit in 64 bits"),
        ({"bytes_up": 1 << 31}, "bytes_up does not fit in 32 bits"),
        ({"generation_id": "g" * 65}, "generation_id is too long, or holds a NUL character"),
        ({"policy": "a\0"}, "policy is too long, or holds a NUL character"),
        ({"caption": "c" * 80 + "\0"}, "caption is too long, or holds a NUL character"),
        ({"created_at": float("nan")}, "created_at or threshold is not a number"),
        ({"threshold": float("nan")}, "created_at or threshold is not a number"),
    ],
)
def test_a_record_that_no_database_takes_is_set_aside(
    changes: dict[str, Any], sentence: str
) -> None:
    found = read_batch([inbound(**changes), inbound(sequence=2)])

    assert [each.reason for each in found.rejected] == [sentence]
    assert [each.record.sequence for each in found.reports] == [2]
    assert {sequence for _, _, sequence in found.receipts} == {1, 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": -(1 << 63)},
        {"seed": (1 << 63) - 1},
        {"bytes_up": (1 << 31) - 1},
        {"sequence": 1 << 40},
        {"caption": "c" * 512},
        {"threshold": float("inf")},
    ],
)
def test_a_record_at_the_limit_is_stored(changes: dict[str, Any]) -> None:
    found = read_batch([inbound(**changes)])

    assert len(found.reports) == 1
    assert found.rejected == []
