"""Every topic of the fleet. All traffic of one node lies under `fleet/v1/d/{node}/`."""

from fleet.errors import ProtocolError
from fleet.ids import BootId, NodeId, WorkerId

ROOT = "fleet/v1"
HUB_STATES = f"{ROOT}/hub/+/state"  # retained: HubStatus of every worker

# What a hub worker subscribes to. Each filter has a group of its own: rumqttd keeps one cursor a
# group name, and skips payloads where two filters share it.
OPENS = f"$share/hub-opens/{ROOT}/d/+/rq/any"  # any worker: GenerationOpen
RECORDS = f"$share/hub-records/{ROOT}/d/+/record"  # any worker: GenerationRecord, QoS 1
NODE_STATES = f"{ROOT}/d/+/state"  # retained: NodeStatus
ROUND_REPLIES = f"{ROOT}/d/+/round"  # whoever runs rounds: RoundReply, QoS 1


def hub_state(worker: WorkerId) -> str:
    """Retained: a worker's birth and last will; empty once it is long gone."""
    return f"{ROOT}/hub/{worker}/state"


def requests_to(worker: WorkerId) -> str:
    """Filter of the requests pinned to one worker: VerifyRequest and GenerationClose."""
    return f"{ROOT}/d/+/rq/{worker}"


def node_state(node: NodeId) -> str:
    """Retained: a node's birth, heartbeat and last will."""
    return f"{ROOT}/d/{node}/state"


def desired(node: NodeId) -> str:
    """Retained: the settings that the operator wants of a node."""
    return f"{ROOT}/d/{node}/desired"


def reported(node: NodeId) -> str:
    """Retained: the settings in force on a node."""
    return f"{ROOT}/d/{node}/reported"


def open_request(node: NodeId) -> str:
    """Where a node asks any worker to open a generation."""
    return f"{ROOT}/d/{node}/rq/any"


def pinned_request(node: NodeId, worker: WorkerId) -> str:
    """Where a node sends what belongs to a session on `worker`."""
    return f"{ROOT}/d/{node}/rq/{worker}"


def record(node: NodeId) -> str:
    """Where a node reports finished pictures (QoS 1)."""
    return f"{ROOT}/d/{node}/record"


def round_tasks(node: NodeId) -> str:
    """Where a node is asked to take part in a round (QoS 1)."""
    return f"{ROOT}/d/{node}/task"


def round_reply(node: NodeId) -> str:
    """Where a node answers (QoS 1)."""
    return f"{ROOT}/d/{node}/round"


def round_body(body: str) -> str:
    """Filter of the chunks of what a round sends to all of its nodes, by its hash."""
    return f"{ROOT}/hub/body/{body}/+"


def round_chunk(body: str, index: int) -> str:
    """Retained: one chunk of a body, published once for all nodes."""
    return f"{ROOT}/hub/body/{body}/{index}"


def inbox(node: NodeId, boot: BootId) -> str:
    """Where one boot of a node receives answers and receipts."""
    return f"{ROOT}/d/{node}/rx/{boot}"


def sender(topic: str) -> NodeId:
    """The node that a topic below `fleet/v1/d/` belongs to.

    Raises:
        ProtocolError: The topic is not of that form.
    """
    parts = topic.split("/")
    if parts[:3] != ["fleet", "v1", "d"] or len(parts) < 5 or not parts[3]:
        raise ProtocolError(f"topic {topic!r} names no node")
    return NodeId(parts[3])
