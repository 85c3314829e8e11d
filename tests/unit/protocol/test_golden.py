"""Messages of every released protocol version still decode, to what they meant.

A new message, or a new field, adds an entry with `encode(message).hex()` and
`message.model_dump_json()`; no entry is ever changed: agents of that age are in the field.
"""

import json
from pathlib import Path

import pytest

from fleet.protocol.codec import decode
from tests.unit.protocol.strategies import KINDS

GOLDEN = Path(__file__).parents[2] / "golden"
ENTRIES = [
    pytest.param(entry, id=f"{file.stem} {entry['name']}")
    for file in sorted(GOLDEN.glob("protocol-*.json"))
    for entry in json.loads(file.read_text())
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_golden_bytes_decode_to_what_they_meant(entry: dict[str, str]) -> None:
    meant = json.loads(entry["message"])

    message = json.loads(decode(bytes.fromhex(entry["bytes"])).model_dump_json())

    assert {field: message[field] for field in meant} == meant


def test_every_message_has_golden_bytes() -> None:
    kept = {type(decode(bytes.fromhex(entry.values[0]["bytes"]))) for entry in ENTRIES}  # type: ignore[index]

    assert kept == set(KINDS)
