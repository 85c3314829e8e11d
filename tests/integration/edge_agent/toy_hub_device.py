"""A device for the hub's toy model, and the picture that the two should make together."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Order
from edge_agent.drafts import Draft
from fleet.models.bundle import Manifest
from fleet.protocol.arrays import FEATURE_BYTES
from tests.integration.cloud_hub.hub import VOCABULARY
from tests.unit.cloud_hub.toy import POSITIONS, SAMPLING, VOCAB, run_of, toy_draw
from tests.unit.edge_agent.toy import MANIFEST as OTHER_MANIFEST

CAPTION = "red heart"
WORDS = tuple(VOCABULARY.encode(CAPTION))
PREFIX = 3
MANIFEST: Manifest = OTHER_MANIFEST.model_copy(
    update={
        "family": "toy",
        "grid": 4,
        "vocab_size": VOCAB,
        "sampling": SAMPLING,
        "prefix_tokens": PREFIX,
    }
)


def _number(what: str, seed: int, tokens: tuple[int, ...]) -> int:
    digest = hashlib.blake2b(f"{what} {seed} {tokens}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def device_token(seed: int, tokens: tuple[int, ...]) -> int:
    """Two times out of three what the cloud would draw if it had all these tokens itself."""
    if _number("agree", seed, tokens) % 3:
        return toy_draw(WORDS, run_of(tokens), seed)
    return _number("device", seed, tokens) % VOCAB


def is_uncertain(order: Order, tokens: tuple[int, ...]) -> bool:
    match order.policy.name:
        case "verify_all":
            return True
        case "device_only":
            return False
        case _:
            return _number("score", order.seed, tokens) % 10 < 5


def expected(order: Order) -> list[int]:
    """The picture by the simplest rule, one token after the other."""
    tokens: list[int] = []
    local: list[bool] = []
    for position in range(POSITIONS):
        asked = position < order.prefix_tokens or is_uncertain(order, tuple(tokens))
        if asked:
            run = run_of(tokens, local)
            tokens.append(toy_draw(WORDS, run, order.seed, use_features=order.use_features))
        else:
            tokens.append(device_token(order.seed, tuple(tokens)))
        local.append(not asked)
    return tokens


@dataclass
class HubToyDrafter:
    """Keeps the inputs of its rows, as the ONNX step does."""

    order: Order

    def __post_init__(self) -> None:
        self.rows = [-9] * POSITIONS

    def step(self, position: int, previous: int) -> Draft:
        self.rows[position] = previous
        tokens = tuple(self.rows[1 : position + 1])
        token = device_token(self.order.seed, tokens)
        return Draft(
            token=token,
            score=0.9 if is_uncertain(self.order, tokens) else 0.1,
            uncertain=is_uncertain(self.order, tokens),
            feature=np.full(FEATURE_BYTES, 1 + token, np.float32),
        )


@dataclass
class HubToyDevice:
    size: int = POSITIONS
    vocab_size: int = VOCAB
    manifest: Manifest = MANIFEST
    keeps_states: bool = False

    def check(self, caption: str) -> None:
        VOCABULARY.encode(caption)

    def wants(self, caption: str) -> bool:
        return False

    def tell(self, caption: str, condition: bytes) -> None:
        raise AssertionError("it reads captions itself")

    def begin(self, order: Order) -> HubToyDrafter:
        return HubToyDrafter(replace(order))

    def quantise(self, features: NDArray[np.float32]) -> NDArray[np.int8]:
        return features.astype(np.int8)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.repeat(tokens.astype(np.uint8), 3).reshape(4, 4, 3)
