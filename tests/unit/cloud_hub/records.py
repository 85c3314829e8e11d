"""Messages with the tests' defaults."""

from typing import Any

from fleet.ids import BootId, GenerationId, ModelVersion, RequestId
from fleet.protocol.arrays import pack_mask, pack_tokens
from fleet.protocol.messages import (
    GenerationOpen,
    GenerationRecord,
    NodeStatus,
    Sampling,
    VerifyRequest,
)
from tests.unit.cloud_hub.toy import SAMPLING, tokens_of


def record(**changes: Any) -> GenerationRecord:
    """A picture of 256 tokens: 15 prefix, 200 local, 41 verified, 4 of them corrected."""
    fields: dict[str, Any] = {
        "boot_id": BootId("boot"),
        "sequence": 1,
        "generation_id": GenerationId("g1"),
        "created_at": 1.7e9,
        "agent_version": "0.1.0",
        "device_version": ModelVersion("device"),
        "cloud_version": ModelVersion("cloud"),
        "caption_hash": "0" * 64,
        "seed": (1 << 63) - 1,
        "sampling": Sampling(temperature=1.0, top_k=0, guidance=4.0),
        "policy": "uncertainty",
        "threshold": 0.5,
        "tokens": 256,
        "prefix": 15,
        "local": 200,
        "verified": 41,
        "corrected": 4,
        "unverified": 0,
        "wasted": 7,
        "forwards": 30,
        "round_trips": 16,
        "retries": 1,
        "bytes_up": 5000,
        "bytes_down": 900,
        "duration_s": 2.0,
        "device_s": 1.0,
        "wait_s": 0.5,
        "queue_s": 0.1,
        "forward_s": 0.2,
        "scores": bytes(range(256)),
        "decisions": bytes(256),
        "confidences": bytes(256),
    }
    return GenerationRecord(**(fields | changes))


def status(**changes: Any) -> NodeStatus:
    """A node that is ready."""
    fields: dict[str, Any] = {
        "boot_id": BootId("boot"),
        "state": "ready",
        "agent_version": "0.1.0",
        "device_version": ModelVersion("device"),
        "family": "toy",
        "facts": {"machine": "x86_64"},
        "at": 1.7e9,
    }
    return NodeStatus(**(fields | changes))


def open_message(**changes: Any) -> GenerationOpen:
    """An opening with a prefix of three tokens."""
    fields: dict[str, Any] = {
        "request_id": RequestId("r1"),
        "boot_id": BootId("boot"),
        "generation_id": GenerationId("g1"),
        "family": "toy",
        "caption": "red heart",
        "seed": 7,
        "sampling": SAMPLING,
        "prefix_tokens": 3,
        "deadline_s": 5.0,
    }
    return GenerationOpen(**(fields | changes))


def verify_message(tokens: list[int], **changes: Any) -> VerifyRequest:
    """A backlog of uncertain tokens at position 3."""
    count = len(tokens)
    fields: dict[str, Any] = {
        "request_id": RequestId("r2"),
        "boot_id": BootId("boot"),
        "generation_id": GenerationId("g1"),
        "branch": 0,
        "start": 3,
        "tokens": pack_tokens(tokens_of(tokens)),
        "uncertain": pack_mask(tokens_of([1] * count).astype(bool)),
        "local": pack_mask(tokens_of([0] * count).astype(bool)),
        "deadline_s": 5.0,
    }
    return VerifyRequest(**(fields | changes))
