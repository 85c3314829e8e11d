"""Messages survive the wire, and whatever is not one of ours is refused with a sentence."""

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import ProtocolError
from fleet.protocol.codec import MAX_MESSAGE_BYTES, VERSION, decode, encode, without
from fleet.protocol.messages import (
    GenerationClose,
    GenerationOpen,
    GenerationRecord,
    Message,
    Receipt,
    Refused,
)
from tests.unit.protocol.strategies import KINDS, any_message, messages_of

CLOSE = GenerationClose.model_validate({"boot_id": "b", "generation_id": "g"})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))

    assert decode(encode(message)) == message


@given(any_message)
def test_equal_messages_have_equal_bytes(message: Message) -> None:
    assert encode(message) == encode(message.model_copy(deep=True))


def test_a_field_that_has_its_default_does_not_travel() -> None:
    answer = {"request_id": "r", "generation_id": "g", "reason": "stale"}

    payload = encode(Refused.model_validate(answer))

    assert msgpack.unpackb(payload[1:]) == {"type": "refused", **answer}


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(payload: bytes) -> None:
    assert_total(payload)


@given(st.binary(max_size=300))
def test_any_bytes_of_our_version_are_a_message_or_a_protocol_error(rest: bytes) -> None:
    assert_total(bytes([VERSION]) + rest)


@given(any_message, st.data())
def test_a_damaged_message_is_a_message_or_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    payload = bytearray(encode(message))
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] ^= data.draw(st.integers(1, 255))

    assert_total(bytes(payload))
    assert_total(bytes(payload[:position]))


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=20,
)


@given(any_message, st.data())
def test_a_field_of_another_kind_is_a_message_or_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    fields = message.model_dump()
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(anything)

    assert_total(bytes([VERSION]) + msgpack.packb(fields))


def assert_total(payload: bytes) -> None:
    """`decode` gives one of our messages or raises ProtocolError, and nothing else."""
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode(payload), KINDS)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b"", "message is empty"),
        (b"\x02\x80", "message of version 2; this release speaks 1"),
        (b"\x01\xc1", "not a message of ours: the bytes are not msgpack"),
        (b"\x01", "not a message of ours: the bytes are not msgpack"),
        (b"\x01\x80\x80", "not a message of ours: the bytes are not msgpack"),
        (b"\x01" + msgpack.packb([1, 2]), "not a message of ours: "),
        (b"\x01" + msgpack.packb({"type": "greeting"}), "not a message of ours: "),
        (b"\x01" + msgpack.packb({"type": "receipt"}), "not a message of ours: receipt.boot_id: "),
    ],
)
def test_what_is_not_ours_gets_a_sentence(payload: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(payload)

    assert str(caught.value).startswith(sentence)


def test_an_unknown_field_is_named() -> None:
    fields = CLOSE.model_dump() | {"surprise": 1}

    with pytest.raises(ProtocolError, match="surprise"):
        decode(bytes([VERSION]) + msgpack.packb(fields))


def test_a_payload_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="message of 262145 bytes is over the limit of 262144"):
        decode(bytes(MAX_MESSAGE_BYTES + 1))


def test_a_message_over_the_limit_is_not_sent() -> None:
    fields = {"tokens": bytes(MAX_MESSAGE_BYTES // 2), "local": bytes(MAX_MESSAGE_BYTES // 2)}
    message = GenerationOpen.model_validate(
        {
            "request_id": "r",
            "boot_id": "b",
            "generation_id": "g",
            "family": "emoji",
            "caption": "c",
            "seed": 1,
            "sampling": {"temperature": 1.0, "top_k": 0, "guidance": 1.0},
            "prefix_tokens": 16,
            "history": fields,
            "deadline_s": 1.0,
        }
    )

    with pytest.raises(ProtocolError, match=r"GenerationOpen of .* bytes is over the limit"):
        encode(message)


@given(messages_of(GenerationRecord))
def test_a_payload_without_a_field_is_the_message_without_it(record: GenerationRecord) -> None:
    stripped = without(encode(record), "unseen")

    assert decode(stripped) == record.model_copy(update={"unseen": None})
    assert without(stripped, "unseen") == stripped


@given(st.binary(max_size=64))
def test_of_bytes_that_are_no_message_nothing_is_taken(payload: bytes) -> None:
    assert without(payload, "unseen") == payload


def test_nesting_without_end_is_refused() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"

    with pytest.raises(ProtocolError):
        decode(bytes([VERSION]) + deep)


def test_a_receipt_names_at_most_1024_records() -> None:
    with pytest.raises(ValueError, match="at most 1024"):
        Receipt.model_validate({"boot_id": "b", "sequences": list(range(1025))})
