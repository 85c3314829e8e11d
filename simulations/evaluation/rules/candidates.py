"""Which of several drafts for one position stands: exact, and LANTERN's relaxed rules.

The candidates of a position are looked at one after the other; with each that is refused, its
share of the target's law is spent, so the next one, and in the end the draw from what is left,
see the law given that all before were refused. Without a neighbourhood the token's law is the
target's exactly, whatever the candidates (EAGLE-2, arXiv:2406.16858; SpecInfer,
arXiv:2305.09781).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.float64]
REFUSED = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """What became of a position's candidates.

    Attributes:
        index: The candidate that stands, or `REFUSED`.
        left: [V], the law of the token if none stands.
    """

    index: int
    left: Law


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """LANTERN's relaxation (arXiv:2410.03355): a draft also counts for codes that look like it.

    Attributes:
        nearest: [V, k], the codes nearest to each code in the codebook, nearest first.
        bound: LANTERN: how much probability neighbours may lend, the distance that the law is
            moved by. LANTERN++ (arXiv:2502.06352): lent probability over the code's own, plus 1.
        is_ratio: Whether `bound` is LANTERN++'s.
    """

    nearest: NDArray[np.int64]
    bound: float
    is_ratio: bool = False

    def lent(self, law: Law, token: int) -> tuple[float, int]:
        """What the neighbours lend to `token`, and how many of them lend.

        They are the nearest j codes for the largest j whose sum stays within the bound.
        """
        sums = np.cumsum(law[self.nearest[token]])
        limit = (self.bound - 1) * law[token] if self.is_ratio else self.bound
        count = int(np.searchsorted(sums, limit, side="right"))
        return (float(sums[count - 1]) if count else 0.0), count


def nearest_codes(codes: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """The `count` nearest other codes [V, count] of each of the code vectors [V, d]."""
    points = codes.astype(np.float64)
    squares = (points**2).sum(axis=1)
    distance = squares[:, None] + squares[None, :] - 2 * points @ points.T
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, : min(count, len(codes) - 1)]


def choose(
    target: Law,
    candidates: Sequence[int],
    uniforms: NDArray[np.float64],
    neighbourhood: Neighbourhood | None = None,
) -> Choice:
    """Judge candidates that the drafter picked without chance (its most likely codes).

    Candidate x stands with probability p(x), its share of what is left of the target's law;
    with a neighbourhood, with p(x) and what its neighbours lend.
    """
    law = target.copy()
    for index, (token, luck) in enumerate(zip(candidates, uniforms, strict=False)):
        lent, lenders = neighbourhood.lent(law, token) if neighbourhood else (0.0, 0)
        if luck < law[token] + lent:
            return Choice(index, law)
        spent = [token]
        if neighbourhood and lenders:
            # As LANTERN's code has it: all k neighbours fall, however many lent.
            spent += list(neighbourhood.nearest[token])
        law = _without(law, spent)
    return Choice(REFUSED, law)


def choose_sampled(
    target: Law,
    draft: Law,
    candidates: Sequence[int],
    uniforms: NDArray[np.float64],
    neighbourhood: Neighbourhood | None = None,
) -> Choice:
    """Judge candidates that were drawn from `draft` [V] without replacement, in that order.

    Candidate x stands with probability min(1, p(x) / q(x)), q being the draft law without the
    candidates before it; else p becomes (p - q)+, normalised.
    """
    law, drawn_from = target.copy(), draft.copy()
    for index, (token, luck) in enumerate(zip(candidates, uniforms, strict=False)):
        if drawn_from[token] <= 0:  # the draft law had no more codes: this one was not drawn
            break
        lent, lenders = neighbourhood.lent(law, token) if neighbourhood else (0.0, 0)
        if luck * drawn_from[token] < law[token] + lent:
            return Choice(index, law)
        left = np.maximum(law - drawn_from, 0)
        law = left / left.sum() if left.sum() > 0 else law
        if neighbourhood and lenders:
            law = _without(law, list(neighbourhood.nearest[token]))
        drawn_from = _without(drawn_from, [token])
    return Choice(REFUSED, law)


def _without(law: Law, tokens: list[int]) -> Law:
    """The law given that it is none of `tokens`; itself where nothing else is possible."""
    rest = law.copy()
    rest[tokens] = 0
    total = rest.sum()
    return rest / total if total > 0 else law
