"""Flower's private spots, all of them: what its public interface does not offer a grid.

`tests/unit/federation/test_flower.py` is the contract that a new release of Flower must keep;
`pyproject.toml` pins the one it was read in.
"""

import hashlib
import logging
import os

# Before the first import: no word to telemetry or update servers, and no packages at run time.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import Message, RecordDict
from flwr.app.metadata import Metadata  # private: Message takes one, but nothing public makes it
from flwr.supercore.task_identity import TaskIdentity  # private: Message's constructor reads it

FAILED = 101  # an error code of ours: the node's app raised, or its answer cannot be read
HUB_NODE = 1  # Flower's own number for the server side

logging.getLogger("flwr").setLevel(logging.WARNING)


def take_identity(run: int) -> None:
    """Names the run whose messages this process makes from now on; one run at a time.

    Where Flower's own engine runs the process, it has done so already, and is left alone.
    """
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, HUB_NODE, HUB_NODE


def name_message(message: Message, message_id: str) -> None:
    """Gives a message its id, which Flower leaves to whoever carries it."""
    message.metadata.__dict__["_message_id"] = message_id


def instruction(
    content: RecordDict, *, run: int, message_id: str, node: int, message_type: str, ttl: float
) -> Message:
    """A message as a node receives it."""
    metadata = Metadata(
        run_id=run,
        message_id=message_id,
        src_node_id=HUB_NODE,
        dst_node_id=node,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=ttl,
        message_type=message_type,
    )
    # Private: the overload with metadata is for Flower's own use.
    message: Message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
    return message


def message_id_of(run: int, message: Message, body: str) -> str:
    """What a message is called: the same run, node, kind and body (a hash) give the same id."""
    meta = message.metadata
    text = f"{run} {meta.dst_node_id} {meta.message_type} {body}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
