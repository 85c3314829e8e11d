"""Every message of the fleet, grouped by who receives it.

Fields may be added with a default; none is renamed, retyped or removed. Arrays travel as
bytes in the layout that each field's comment gives (`fleet/protocol/arrays.py` packs them).
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fleet.ids import BootId, GenerationId, ModelVersion, RequestId, WorkerId

MAX_IMAGE_TOKENS = 4096
MAX_ARRAY_BYTES = 1 << 18
MAX_CHUNKS = 256

Arr = Annotated[bytes, Field(max_length=MAX_ARRAY_BYTES)]
Text = Annotated[str, Field(max_length=512)]
Name = Annotated[str, Field(min_length=1, max_length=64)]
Hash = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]  # SHA-256
Count = Annotated[int, Field(ge=0, le=1 << 40)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Message(BaseModel):
    """What all messages share: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64")


# ── The hub receives ──────────────────────────────────────────────────────────────────────


class Sampling(Message):
    """How logits become a law: guidance, then temperature, then top-k (LlamaGen's order)."""

    temperature: float = Field(gt=0, le=100)
    top_k: int = Field(ge=0)  # 0: no cut
    guidance: float = Field(ge=1, le=100)  # 1: conditional branch only


class History(Message):
    """All tokens that a device holds of one picture, so that any worker can rebuild its cache."""

    tokens: Arr = b""  # u16 [n]
    local: Arr = b""  # bitmap [n]: 1 where the token was accepted on the device
    features: Arr = b""  # i8 [number of local tokens, 48], in token order


class GenerationOpen(Message):
    """Asks any worker for a session and for the injected prefix, or for a session on tokens it has.

    With an empty history the worker draws `prefix_tokens` tokens. With a history (a reopened
    picture) it rebuilds the cache from it and draws none beyond `prefix_tokens` in all.
    """

    type: Literal["generation_open"] = "generation_open"
    request_id: RequestId
    boot_id: BootId
    generation_id: GenerationId
    family: Name  # the reference family's name: both sides must speak the same tokens
    caption: Text
    seed: int = Field(ge=0, lt=1 << 63)
    sampling: Sampling
    prefix_tokens: int = Field(ge=0, le=MAX_IMAGE_TOKENS)
    use_features: bool = True  # the switch g of the interval feature
    rule: Name = "gumbel"  # how the cloud judges: "gumbel" or "residual"
    relaxation: float = Field(default=1.0, ge=1, le=100)  # of the residual rule; 1: exact
    law_size: int = Field(default=0, ge=0, le=256)  # codes of a law that the device learns from
    wants_condition: bool = False  # the device cannot read the caption by itself
    branch: Count = 0
    history: History = History()
    deadline_s: Seconds


class VerifyRequest(Message):
    """A backlog to run and its uncertain positions to judge.

    `start` is the position of the first backlog token. `branch` counts the corrections that
    the device has applied so far: a request of another branch is stale.
    """

    type: Literal["verify_request"] = "verify_request"
    request_id: RequestId
    boot_id: BootId
    generation_id: GenerationId
    branch: Count
    start: int = Field(ge=0, le=MAX_IMAGE_TOKENS)
    tokens: Arr  # u16 [n], n >= 1
    uncertain: Arr  # bitmap [n]: 1 where the cloud shall judge
    local: Arr  # bitmap [n]: 1 where accepted on the device (neither: verified earlier)
    features: Arr = b""  # i8 [number of local tokens, 48]
    laws: Arr = b""  # of the uncertain drafts, where the session's rule is "residual"
    deadline_s: Seconds


class GenerationClose(Message):
    """Frees a session; not answered."""

    type: Literal["generation_close"] = "generation_close"
    boot_id: BootId
    generation_id: GenerationId


class Unseen(Message):
    """Tokens of a finished picture that no forward of the cloud has run, for a spot check.

    They go with the records of a share of pictures. The hub runs them when it has nothing else
    to do, and stores neither the caption nor the tokens.
    """

    family: Name
    caption: Text
    use_features: bool = True
    start: int = Field(ge=0, le=MAX_IMAGE_TOKENS)  # before it the cloud has seen every token
    share: float = Field(gt=0, le=1)  # of the pictures with such tokens, whose records carry them
    history: History  # all tokens of the picture


class GenerationRecord(Message):
    """What happened during one picture; stored once per (node, boot, sequence)."""

    type: Literal["generation_record"] = "generation_record"
    boot_id: BootId
    sequence: Count
    generation_id: GenerationId
    created_at: float  # device clock, seconds since the epoch
    agent_version: Name
    device_version: ModelVersion
    cloud_version: ModelVersion = ModelVersion("")  # empty: the cloud took no part
    caption_hash: Name  # sha256 of the caption
    caption: Text = ""  # only where the operator switched it on
    seed: int
    sampling: Sampling
    policy: Name  # score's name, or "verify_all" / "device_only"
    threshold: float  # may be ±inf
    tokens: Count
    prefix: Count
    local: Count
    verified: Count  # judged by the cloud, corrected ones included
    corrected: Count
    unverified: Count  # uncertain, but kept by the fallback policy
    wasted: Count  # drafts dropped by rollbacks
    forwards: Count  # cloud forwards that served this picture, prefix steps included
    round_trips: Count
    retries: Count
    bytes_up: Count
    bytes_down: Count
    duration_s: Seconds
    device_s: Seconds
    wait_s: Seconds  # time in which the device could do nothing but wait for the cloud
    queue_s: Seconds  # as the hub reports
    forward_s: Seconds  # as the hub reports
    fallback: Literal["", "no_broker", "timeout", "busy", "refused", "cancelled"] = ""
    repairs: Annotated[str, Field(max_length=64)] = ""  # generation id that this one corrects
    scores: Arr = b""  # u8 [tokens], log scale (arrays.pack_scores)
    decisions: Arr = b""  # u8 [tokens]: 0 prefix, 1 local, 2 verified, 3 corrected, 4 unverified
    confidences: Arr = b""  # u8 [tokens]: the cloud's probability ×255; 0 where unknown
    detailed: bool = False  # the hub shall keep a row a token for a while
    unseen: Unseen | None = None


class NodeStatus(Message):
    """A node's birth, heartbeat or last will."""

    type: Literal["node_status"] = "node_status"
    boot_id: BootId
    state: Literal["ready", "stopped", "lost"]
    agent_version: Name
    device_version: ModelVersion
    family: Name
    facts: dict[Name, Text] = {}  # hardware, platform, capabilities
    pictures: Count = 0
    outbox_records: Count = 0
    at: float  # device clock, seconds since the epoch


class ReportedSettings(Message):
    """The settings in force on a device, and the desired version that they follow; retained."""

    type: Literal["reported_settings"] = "reported_settings"
    boot_id: BootId
    version: Count  # 0: none was ever desired
    settings: dict[Name, Text]  # all that can be set from afar, values as JSON
    refused: dict[Name, Text] = {}  # by key, with the reason


# ── A device receives ─────────────────────────────────────────────────────────────────────


class GenerationOpened(Message):
    """A session on `worker`, with the prefix drawn so far."""

    type: Literal["generation_opened"] = "generation_opened"
    request_id: RequestId
    generation_id: GenerationId
    worker: WorkerId
    cloud_version: ModelVersion
    tokens: Arr  # u16 [n]: the tokens drawn by the cloud, after the history's
    confidences: Arr  # u8 [n]
    forwards: Count
    queue_s: Seconds
    forward_s: Seconds
    condition: Arr = b""  # what the caption means to the model, if asked for (condition.py)


class VerifyResponse(Message):
    """The verdict on one backlog.

    `accepted` backlog tokens stand. If it is less than the backlog's length, the token after
    them is replaced by `next_token` and the rest dropped. Otherwise `next_token` is the bonus
    token: the cloud's own draw for the position after the backlog (-1 after the last position).
    """

    type: Literal["verify_response"] = "verify_response"
    request_id: RequestId
    generation_id: GenerationId
    branch: Count  # the session's branch after this verdict
    accepted: int = Field(ge=0)
    next_token: int = Field(ge=-1)
    confidences: Arr  # u8, of each judged position up to and including a correction
    forwards: Count
    queue_s: Seconds
    forward_s: Seconds
    top_laws: Arr = b""  # the cloud's laws at a sampled share of the positions, if asked for


class Busy(Message):
    """The hub is full: come back after `retry_after_s`."""

    type: Literal["busy"] = "busy"
    request_id: RequestId
    generation_id: GenerationId
    retry_after_s: Seconds


class Refused(Message):
    """A request that cannot be served as it is.

    `unknown_session`: reopen with the history. `stale`: an answer to a newer request is on its
    way. `gap`: send again from position `expected`. `invalid`: `detail` says what is wrong.
    """

    type: Literal["refused"] = "refused"
    request_id: RequestId
    generation_id: GenerationId
    reason: Literal["unknown_session", "stale", "gap", "invalid", "other_family"]
    expected: int = -1
    detail: Text = ""


class DesiredSettings(Message):
    """What the operator wants of one device; retained, and the higher version counts."""

    type: Literal["desired_settings"] = "desired_settings"
    version: Count
    settings: dict[Name, Text] = Field(default={}, max_length=64)  # by key, values as JSON


class Receipt(Message):
    """The hub has stored these records of this boot; the device may drop them."""

    type: Literal["receipt"] = "receipt"
    boot_id: BootId
    sequences: list[Count] = Field(max_length=1024)


class RoundTask(Message):
    """Asks a node to take part in a federated round; repeated until it is answered.

    What is asked stands in a body that all nodes of the round fetch by its hash. The same
    `message_id` means the same task: a node that has answered it answers as it did.
    """

    type: Literal["round_task"] = "round_task"
    message_id: RequestId
    run: int = Field(ge=0, lt=1 << 63)
    number: int = Field(ge=0, lt=1 << 63)  # the node's number in the run
    kind: Literal["query", "train", "evaluate"]
    body: Hash
    chunks: int = Field(ge=1, le=MAX_CHUNKS)
    deadline_s: Seconds


class RoundChunk(Message):
    """A part of a body; retained under the body's hash while a round needs it."""

    type: Literal["round_chunk"] = "round_chunk"
    index: int = Field(ge=0, lt=MAX_CHUNKS)
    data: Arr


# ── Whoever runs rounds receives ──────────────────────────────────────────────────────────


class RoundReply(Message):
    """A node's answer to a task, in one or several parts; or, with `error`, why there is none."""

    type: Literal["round_reply"] = "round_reply"
    message_id: RequestId
    body: Hash = ""
    index: int = Field(default=0, ge=0, lt=MAX_CHUNKS)
    chunks: int = Field(default=1, ge=1, le=MAX_CHUNKS)
    data: Arr = b""
    error: Text = ""


# ── Everybody receives ────────────────────────────────────────────────────────────────────


class HubStatus(Message):
    """The hub's retained birth and last will."""

    type: Literal["hub_status"] = "hub_status"
    up: bool
    boot_id: BootId
    worker: WorkerId
    family: Name
    cloud_version: ModelVersion
    hub_version: Name


AnyMessage = Annotated[
    GenerationOpen
    | VerifyRequest
    | GenerationClose
    | GenerationRecord
    | NodeStatus
    | GenerationOpened
    | VerifyResponse
    | Busy
    | Refused
    | Receipt
    | RoundTask
    | RoundChunk
    | RoundReply
    | HubStatus
    | DesiredSettings
    | ReportedSettings,
    Field(discriminator="type"),
]

ToNode = GenerationOpened | VerifyResponse | Busy | Refused | Receipt
ToHub = GenerationOpen | VerifyRequest | GenerationClose | GenerationRecord | NodeStatus
