"""The device model as a picture needs it: one draft a call, with the decision already made."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.drafts import Draft
from fleet.decoding.accept import Policy
from fleet.decoding.verify import SHARED_NOISE, Rule
from fleet.models.bundle import Manifest
from fleet.protocol.messages import Sampling


@dataclass(frozen=True, slots=True)
class Order:
    """What a picture depends on, apart from the models."""

    caption: str
    seed: int
    sampling: Sampling
    policy: Policy
    prefix_tokens: int
    use_features: bool
    rule: Rule = SHARED_NOISE


class Drafter(Protocol):
    """The device model at work on one picture."""

    def step(self, position: int, previous: int) -> Draft:
        """Draws the token at `position` after `previous` (-1 at position 0).

        Positions may be visited again: the cache up to there stays valid.
        """
        ...


class Device(Protocol):
    """What a device can do."""

    @property
    def manifest(self) -> Manifest:
        """What its bundle says about it."""
        ...

    @property
    def size(self) -> int:
        """Tokens of a picture."""
        ...

    @property
    def vocab_size(self) -> int:
        """Codes of a token."""
        ...

    @property
    def keeps_states(self) -> bool:
        """Whether drafts carry the head's hidden states, to learn from."""
        ...

    def check(self, caption: str) -> None:
        """Raises InvalidInputError for a caption that the models cannot read."""
        ...

    def wants(self, caption: str) -> bool:
        """Whether the hub has to tell what a caption means before a picture can begin."""
        ...

    def tell(self, caption: str, condition: bytes) -> None:
        """Keeps what the hub told of a caption; raises ProtocolError if it is not for this model.

        Reads and writes a file, so it is called outside the loop.
        """
        ...

    def begin(self, order: Order) -> Drafter:
        """Prepares a picture; computes, so it is called outside the loop."""
        ...

    def quantise(self, features: NDArray[np.float32]) -> NDArray[np.int8]:
        """Interval features [k, 48] as they travel."""
        ...

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The picture [side, side, 3] of all its tokens; computes, too."""
        ...
