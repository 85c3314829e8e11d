"""Messages to bytes and back: msgpack, one version byte in front, a bound on the size."""

from functools import cache
from typing import Any

import msgpack
from pydantic import TypeAdapter, ValidationError

from fleet.errors import ProtocolError
from fleet.protocol.messages import AnyMessage, Message

VERSION = 1
_VERSION_BYTE = bytes([VERSION])
MAX_MESSAGE_BYTES = 1 << 18

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyMessage)


def encode(message: Message) -> bytes:
    """`message` as bytes; a field that has its default does not travel.

    So a peer that does not know a new field accepts the messages that do not use it.

    Raises:
        ProtocolError: It is larger than `MAX_MESSAGE_BYTES`.
    """
    fields = message.model_dump(exclude_defaults=True)
    payload: bytes = _VERSION_BYTE + msgpack.packb({"type": _name_of(type(message)), **fields})
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"{type(message).__name__} of {len(payload)} bytes is over the limit"
            f" of {MAX_MESSAGE_BYTES}"
        )
    return payload


def without(payload: bytes, field: str) -> bytes:
    """The payload without a field, where it is a message that has one; else as it is."""
    try:
        fields = msgpack.unpackb(payload[1:])
    except (ValueError, TypeError, msgpack.UnpackException):
        return payload
    if not isinstance(fields, dict) or field not in fields:
        return payload
    kept: bytes = msgpack.packb({name: value for name, value in fields.items() if name != field})
    return payload[:1] + kept


@cache
def _name_of(kind: type[Message]) -> str:
    name: str = kind.model_fields["type"].default
    return name


def decode(payload: bytes) -> Any:
    """The message in `payload`, one of `AnyMessage`.

    Raises:
        ProtocolError: Too large, of an unknown version, or not a message of ours.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}"
        )
    if not payload:
        raise ProtocolError("message is empty")
    if payload[0] != VERSION:
        raise ProtocolError(f"message of version {payload[0]}; this release speaks {VERSION}")
    try:
        return _ADAPTER.validate_python(msgpack.unpackb(payload[1:]))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProtocolError(f"not a message of ours: {where}: {first['msg']}") from error
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError("not a message of ours: the bytes are not msgpack") from error
