"""From logits to a token: guidance, temperature, top-k, and a draw with given noise."""

from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError

Floats = NDArray[np.floating]
F = TypeVar("F", bound=np.floating)


class Sharpening(Protocol):
    """What `sharpen` needs to know; `protocol.messages.Sampling` is one."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...  # 0: no cut


def guide(cond: Floats, uncond: Floats, scale: float) -> Floats:
    """Classifier-free guidance (arXiv:2207.12598) of logits [..., V].

    A scale of 1 or less is the conditional branch itself, to the bit.
    """
    if scale <= 1:
        return cond
    guided: Floats = uncond + cond.dtype.type(scale) * (cond - uncond)
    return guided


def sharpen(logits: Floats, sampling: Sharpening) -> Floats:
    """Logits [..., V] over the temperature, -inf outside the top k.

    Codes that tie with the k-th are kept, so the law does not depend on how a sort breaks ties.

    Raises:
        InvalidInputError: The temperature is not above 0.
    """
    if not sampling.temperature > 0:
        raise InvalidInputError(f"temperature {sampling.temperature} must be above 0")
    scaled: Floats = logits / logits.dtype.type(sampling.temperature)
    if not 0 < sampling.top_k < scaled.shape[-1]:
        return scaled
    last_kept = np.partition(scaled, -sampling.top_k, axis=-1)[..., -sampling.top_k, None]
    cut: Floats = np.where(scaled >= last_kept, scaled, scaled.dtype.type(-np.inf))
    return cut


def law(logits: NDArray[F]) -> NDArray[F]:
    """The softmax of logits [..., V], in their precision: the law that `draw` samples."""
    weights: NDArray[F] = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def draw(logits: Floats, noise: NDArray[np.float32]) -> NDArray[np.int64]:
    """Tokens [...]: the argmax of logits + Gumbel noise, both [..., V]; the first one on a tie.

    With fresh noise its law is the softmax of the logits (the Gumbel-max trick).
    """
    tokens: NDArray[np.int64] = (logits + noise).argmax(axis=-1)
    return tokens
