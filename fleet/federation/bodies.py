"""Bodies of rounds in parts that fit a message, and back; no Flower, no torch."""

import hashlib
from collections.abc import Mapping

from fleet.errors import ProtocolError
from fleet.protocol.messages import MAX_CHUNKS

CHUNK_BYTES = 96 << 10  # small enough that telemetry on the same link is not held up


def count(size: int) -> int:
    """How many parts a body of `size` bytes has."""
    return max(-(-size // CHUNK_BYTES), 1)


def split(body: bytes) -> list[bytes]:
    """The parts of a body; an empty one has one empty part.

    Raises:
        ProtocolError: It has more parts than a message may name.
    """
    parts = [body[i : i + CHUNK_BYTES] for i in range(0, len(body), CHUNK_BYTES)] or [b""]
    if len(parts) > MAX_CHUNKS:
        raise ProtocolError(f"a body of {len(body)} bytes is over {MAX_CHUNKS * CHUNK_BYTES}")
    return parts


def join(parts: Mapping[int, bytes], name: str) -> bytes:
    """The body of all its parts, by index.

    Raises:
        ProtocolError: It is not the one of that hash.
    """
    body = b"".join(parts[index] for index in sorted(parts))
    if hashlib.sha256(body).hexdigest() != name:
        raise ProtocolError("the parts of a body do not give the one that was named")
    return body
