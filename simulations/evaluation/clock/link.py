"""Links between a device and the cloud, and the bytes of what crosses them."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from fleet.ids import BootId, GenerationId, RequestId
from fleet.protocol.arrays import (
    FEATURE_BYTES,
    pack_confidences,
    pack_features,
    pack_mask,
    pack_tokens,
)
from fleet.protocol.codec import encode
from fleet.protocol.messages import VerifyRequest, VerifyResponse

_ID = "0123456789abcdef0123456789abcdef"  # as long as the fleet's own
TREE_NODE_BYTES = 1  # a node's parent, beside its token


@dataclass(frozen=True, slots=True)
class Link:
    """A link without loss or jitter: means only."""

    name: str
    rtt_s: float
    up_bytes_s: float
    down_bytes_s: float

    def up_s(self, size: float) -> float:
        """Seconds until `size` bytes have arrived at the cloud."""
        return self.rtt_s / 2 + size / self.up_bytes_s

    def down_s(self, size: float) -> float:
        """Seconds until `size` bytes have arrived at the device."""
        return self.rtt_s / 2 + size / self.down_bytes_s


def _link(name: str, rtt_ms: float, up_mbit: float, down_mbit: float) -> Link:
    return Link(name, rtt_ms / 1e3, up_mbit * 1e6 / 8, down_mbit * 1e6 / 8)


WIFI = _link("WiFi", 5, 100, 200)
FIVE_G = _link("5G", 20, 50, 200)
FOUR_G = _link("4G", 50, 10, 30)
PROFILES = (WIFI, FIVE_G, FOUR_G)


def sweep(milliseconds: tuple[float, ...]) -> tuple[Link, ...]:
    """5G's bandwidth at other round-trip times."""
    return tuple(_link(f"{rtt:g} ms", rtt, 50, 200) for rtt in milliseconds)


@cache
def request_bytes(tokens: int, local: int) -> int:
    """Bytes of a real `VerifyRequest` of `tokens` tokens, `local` of them with their features."""
    mask = np.arange(tokens) < local
    message = VerifyRequest(
        request_id=RequestId(_ID),
        boot_id=BootId(_ID),
        generation_id=GenerationId(_ID),
        branch=9,
        start=99,
        tokens=pack_tokens(np.full(tokens, 999)),
        uncertain=pack_mask(~mask),
        local=pack_mask(mask),
        features=pack_features(np.zeros((local, FEATURE_BYTES), np.int8)),
        deadline_s=9.5,
    )
    return len(encode(message))


@cache
def response_bytes(judged: int) -> int:
    """Bytes of a real `VerifyResponse` that judged so many positions."""
    message = VerifyResponse(
        request_id=RequestId(_ID),
        generation_id=GenerationId(_ID),
        branch=9,
        accepted=9,
        next_token=999,
        confidences=pack_confidences(np.full(judged, 0.5)),
        forwards=1,
        queue_s=0.001,
        forward_s=0.001,
    )
    return len(encode(message))


def stream_bytes(tokens: int) -> int:
    """Bytes of tokens that the cloud sends in a row: one small message each."""
    return tokens * response_bytes(0)
