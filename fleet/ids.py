"""Names of things that travel: nodes, boots, generations, requests, workers, versions."""

import re
import uuid
from typing import NewType

from fleet.errors import InvalidInputError

NodeId = NewType("NodeId", str)
BootId = NewType("BootId", str)
GenerationId = NewType("GenerationId", str)
RequestId = NewType("RequestId", str)
WorkerId = NewType("WorkerId", str)
ModelVersion = NewType("ModelVersion", str)

_SEGMENT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def new_id() -> str:
    """A fresh random id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def node_id(text: str) -> NodeId:
    """`text` as a node id.

    A node id is one MQTT topic level, so it holds lower-case letters, digits, '-' and '_' only.

    Raises:
        InvalidInputError: `text` has another form.
    """
    if not _SEGMENT.fullmatch(text):
        raise InvalidInputError(
            f"node id {text!r} is not usable: take 1 to 63 lower-case letters, digits, '-' or '_'"
        )
    return NodeId(text)


def is_level(text: str) -> bool:
    """Whether `text` can stand as one level of a topic: what `node_id` accepts."""
    return _SEGMENT.fullmatch(text) is not None
