"""Verification by acceptance and residual, for draft laws that travel: exact, or relaxed.

Speculative sampling (Leviathan et al., arXiv:2211.17192): a draft x ~ q stands with
probability min(1, p(x) / q(x)); else the token comes from the normalised (p - q)+, and later
drafts fall. The token's law is p exactly, provided that x was drawn from the very q that the
cloud sees. So the device first rounds its law to what it will send, and draws from that
(quantise-then-sample, arXiv:2507.00605).

With a relaxation w > 1 the draft stands with probability min(1, w p(x) / q(x)) (Cool-SD,
arXiv:2601.09212): fewer corrections, and a law that is off by `relaxed_distance`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.noise import Stream, gumbel, uniform
from fleet.decoding.sampling import draw, law
from fleet.decoding.verify import NO_TOKEN, Verdict
from fleet.errors import InvalidInputError

Laws = NDArray[np.float64]
Tokens = NDArray[np.int64]
Noise = NDArray[np.float32]

MAX_BITS = 16
# What a device sends: at most so many codes, in multiples of 1/256.
SENT_CODES = 64
SENT_BITS = 8


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedLaw:
    """A law with few codes, whose probabilities are whole multiples of 2^-bits and sum to 1.

    Attributes:
        codes: Codes with a probability above 0, in rising order; [K].
        counts: Their probabilities times 2^bits, each at least 1; [K].
        bits: Bits a probability needs on the wire (as count - 1).

    Raises:
        InvalidInputError: The counts do not sum to 2^bits.
    """

    codes: Tokens
    counts: NDArray[np.int64]
    bits: int

    def __post_init__(self) -> None:
        if self.codes.shape != self.counts.shape or (self.counts < 1).any():
            raise InvalidInputError("a quantised law has one positive count for each code")
        if self.counts.sum() != 1 << self.bits:
            raise InvalidInputError(
                f"the counts of a {self.bits}-bit law sum to {self.counts.sum()},"
                f" not {1 << self.bits}"
            )

    def dense(self, vocab_size: int) -> Laws:
        """Probabilities of all codes [V]; binary fractions, so that they sum to 1 exactly."""
        dense = np.zeros(vocab_size)
        dense[self.codes] = self.counts / (1 << self.bits)
        return dense

    def draw(self, noise: Noise) -> int:
        """A token from exactly this law, with Gumbel noise [V]."""
        logits = np.log(self.counts.astype(np.float64))
        return int(self.codes[draw(logits, noise[self.codes])])


def quantise_law(probabilities: Laws, top_k: int, bits: int) -> QuantisedLaw:
    """The law [V] cut to its `top_k` most likely codes and rounded to multiples of 2^-bits.

    Shares are rounded down, then the largest remainders get one more until the sum is 1. Ties
    go to the lower code, so that the result depends on the law alone.

    Raises:
        InvalidInputError: `top_k` or `bits` is out of range, or the law is not one.
    """
    if not 1 <= top_k <= len(probabilities) or not 1 <= bits <= MAX_BITS:
        raise InvalidInputError(
            f"top_k {top_k} must lie within 1 to {len(probabilities)}, bits {bits} within 1 to"
            f" {MAX_BITS}"
        )
    codes = np.sort(np.argsort(-probabilities, kind="stable")[:top_k])
    mass = probabilities[codes].sum()
    if not (np.isfinite(mass) and mass > 0 and (probabilities[codes] >= 0).all()):
        raise InvalidInputError("a law has finite probabilities with a positive sum")
    shares = probabilities[codes] / mass * (1 << bits)
    counts = np.floor(shares).astype(np.int64)
    missing = (1 << bits) - int(counts.sum())
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    kept = counts > 0
    return QuantisedLaw(codes[kept], counts[kept], bits)


def law_to_send(logits: NDArray[np.floating]) -> QuantisedLaw:
    """The law that a device draws from and sends, from sharpened logits [V].

    Raises:
        InvalidInputError: The logits make no law.
    """
    return quantise_law(
        law(logits.astype(np.float64)), min(SENT_CODES, logits.shape[-1]), SENT_BITS
    )


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What the rule looks at: the backlog and both sides' laws.

    Attributes:
        drafts: The backlog; [n].
        uncertain: Where the cloud shall judge; [n].
        draft_probs: The laws that the drafts were drawn from; [n, V].
        target_probs: The cloud's laws at the backlog's positions and, unless the picture ends
            there, at the one after; [n + 1, V] or [n, V].

    Raises:
        InvalidInputError: Shapes do not fit, or a judged draft has probability 0 in its law.
    """

    drafts: Tokens
    uncertain: NDArray[np.bool_]
    draft_probs: Laws
    target_probs: Laws

    def __post_init__(self) -> None:
        count, size = self.draft_probs.shape
        if self.drafts.shape != (count,) or self.uncertain.shape != (count,):
            raise InvalidInputError(f"{count} draft laws for {self.drafts.shape} drafts")
        if self.target_probs.shape not in ((count, size), (count + 1, size)):
            raise InvalidInputError(
                f"{self.target_probs.shape} target laws for {self.draft_probs.shape} draft laws"
            )
        if (self.uncertain & (_at(self.draft_probs, self.drafts) <= 0)).any():
            raise InvalidInputError("a draft has probability 0 in the law it came with")


@dataclass(frozen=True, slots=True, eq=False)
class Luck:
    """The randomness of one verdict: uniform numbers [n] and Gumbel noise [n + 1, V].

    Both must be independent of the noise that the drafts were drawn with: `noise.Stream`.
    """

    accept: NDArray[np.float64]
    correct: Noise


def luck_of(seed: int, positions: Tokens, vocab_size: int) -> Luck:
    """The luck at consecutive positions [n] of the picture with this seed.

    A function of seed and position, so a verdict can be made again, and a draft that is made
    again after a rollback meets the same luck.
    """
    accept = uniform(seed, positions, 1, Stream.ACCEPT)[:, 0]
    return Luck(accept, gumbel(seed, positions, vocab_size, Stream.CORRECT))


def judge_residual(evidence: Evidence, luck: Luck, relaxation: float) -> Verdict:
    """The verdict by acceptance and residual; exact at relaxation 1.

    Raises:
        InvalidInputError: The relaxation is below 1.
    """
    count = len(evidence.drafts)
    target, draft = evidence.target_probs, evidence.draft_probs

    # q <= w p: keep; else keep with probability w p / q (arXiv:2211.17192, arXiv:2601.09212).
    stands = acceptance(target[:count], draft, relaxation)
    kept = luck.accept < _at(stands, evidence.drafts)
    corrected = np.flatnonzero(evidence.uncertain & ~kept)
    if len(corrected):
        first = int(corrected[0])
        rest = correction(target[first], draft[first], relaxation)
        return Verdict(first, _draw(rest, luck.correct[first]))
    if len(target) > count:
        return Verdict(count, _draw(target[count], luck.correct[count]))
    return Verdict(count, NO_TOKEN)


def acceptance(target: Laws, draft: Laws, relaxation: float) -> Laws:
    """Probability that a draft of each code stands: min(1, w p / q); [..., V].

    Raises:
        InvalidInputError: The relaxation is below 1.
    """
    if not relaxation >= 1:
        raise InvalidInputError(f"relaxation {relaxation} must be at least 1, which is exact")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(draft > 0, relaxation * target / draft, 1.0)
    return np.minimum(1.0, ratio)


def correction(target: Laws, draft: Laws, relaxation: float) -> Laws:
    """The law of the token that replaces a rejected draft: (p - min(q, w p))+, normalised.

    Where no draft can be rejected it is the target law.
    """
    left = np.maximum(target - np.minimum(draft, relaxation * target), 0)
    mass = left.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mass > 0, left / mass, target)


def relaxed_distance(target: Laws, draft: Laws, relaxation: float) -> NDArray[np.float64]:
    """Total variation distance [...] between the token's law and the target law.

    It is sum (min(q, w p) - p)+: the mass that stands beyond p; at most w - 1, and at most the
    distance between p and q. At relaxation 1 it is 0.
    """
    beyond = np.maximum(np.minimum(draft, relaxation * target) - target, 0)
    distance: NDArray[np.float64] = beyond.sum(axis=-1)
    return distance


def _at(values: Laws, tokens: Tokens) -> Laws:
    return np.take_along_axis(values, tokens[:, None], axis=-1)[:, 0]


def _draw(probabilities: Laws, noise: Noise) -> int:
    with np.errstate(divide="ignore"):
        return int(draw(np.log(probabilities), noise))
