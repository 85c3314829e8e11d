"""The reference decoder: many pictures in lock-step, both models at every position.

At each position a rule settles one token a picture from what both models say there. That is the
definition of what the fleet, or a baseline, produces: every rule here draws a token from the
tokens before it alone, so windows, requests, rollbacks and rounds of drafts change when a token
is known, not which one it is. What they cost follows from the story (`costs.py`).
(CIAR, arXiv:2603.25463, with drafter-invariant verification, arXiv:2408.07978.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.models.branches import Branches, Tokens
from fleet.prediction import SCORE_NAMES
from simulations.evaluation.family import Family
from simulations.evaluation.methods import Method
from simulations.evaluation.moment import LOCAL, PREFIX, Luck, Moment
from simulations.evaluation.rules.base import Settled, all_of, settled

Watch = Callable[[Moment, Settled], None]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Finished pictures as tokens, with the story of each token.

    Attributes:
        tokens: [B, T].
        decisions: [B, T], 0 drawn by the cloud, 1 local, 2 verified, 3 corrected, 5 amended.
        sent: [B, T], drafts of the round that begins at a position, 0 where none does.
        score: [B, T], what the gate compared with its threshold; NaN where there was none.
        scores: [B, T, scores], in the order of `SCORE_NAMES`; NaN where nobody looked.
        drafts, own: [B, T], what the device and the cloud drew with the shared noise; -1 where
            nobody looked.
    """

    tokens: Tokens
    decisions: NDArray[np.uint8]
    sent: NDArray[np.uint8]
    score: NDArray[np.float32]
    scores: NDArray[np.float32]
    drafts: NDArray[np.int32]
    own: NDArray[np.int32]


class Decoder:
    """A family at work on one batch of captions by one method."""

    def __init__(self, family: Family, method: Method, captions: list[str], seeds: list[int]):
        words, rule, guidance = family.words(captions), method.rule, method.sampling.guidance
        self._family = family
        self._method = method
        needs_cloud = rule.uses_cloud or method.prefix > 0
        self._cloud = Branches.of_words(family.cloud, words, guidance) if needs_cloud else None
        self._device = (
            Branches.of_words(family.device, words, guidance) if rule.uses_device else None
        )
        self._running = rule.begin(len(seeds))
        size, length = len(seeds), family.tokens
        self._luck = Luck(seeds, length, family.cloud.config.vocab_size)
        self._tokens = np.zeros((size, length), np.int64)
        self._decisions = np.zeros((size, length), np.uint8)
        self._sent = np.zeros((size, length), np.uint8)
        self._score = np.full((size, length), np.nan, np.float32)
        self._scores = np.full((size, length, len(SCORE_NAMES)), np.nan, np.float32)
        self._drafts = np.full((size, length), -1, np.int32)
        self._own = self._drafts.copy()

    def run(self, watch: Watch | None = None) -> Drawn:
        """All positions, one after the other; `watch` sees each as it is settled."""
        for position in range(self._family.tokens):
            moment = Moment(
                self._family,
                self._method.sampling,
                self._luck,
                position,
                self._device,
                self._cloud,
            )
            found = self._settle(moment)
            self._record(moment, found)
            if watch is not None:
                watch(moment, found)
            self._advance(moment)
        return Drawn(
            self._tokens,
            self._decisions,
            self._sent,
            self._score,
            self._scores,
            self._drafts,
            self._own,
        )

    def _settle(self, moment: Moment) -> Settled:
        if moment.position < self._method.prefix:
            return settled(moment.own, all_of(len(moment.seeds), PREFIX))
        return self._running.settle(moment)

    def _record(self, moment: Moment, found: Settled) -> None:
        position = moment.position
        self._tokens[:, position] = found.tokens
        self._decisions[:, position] = found.decisions
        self._sent[:, position] = found.sent
        if found.score is not None:
            self._score[:, position] = found.score
        if "said" in moment.__dict__:  # the rule has looked at the scores
            self._scores[:, position] = moment.said.scores
        if "drafts" in moment.__dict__:
            self._drafts[:, position] = moment.drafts
        if "own" in moment.__dict__:
            self._own[:, position] = moment.own

    def _advance(self, moment: Moment) -> None:
        position = moment.position
        if position + 1 == self._family.tokens:
            return
        tokens = self._tokens[:, position]
        if self._device is not None:
            self._device.push(tokens)
        if self._cloud is None:
            return
        if position + 1 >= self._method.prefix and not self._method.rule.uses_cloud:
            self._cloud = None  # it has drawn its prefix
            return
        local = self._decisions[:, position] == LOCAL
        added = None
        if self._method.use_features and local.any():
            bar = self._method.rule.bar
            added = moment.said.input_feature(self._family, tokens, local, bar)
        self._cloud.push(tokens, added)


def decode(
    family: Family,
    method: Method,
    captions: list[str],
    seeds: list[int],
    watch: Watch | None = None,
) -> Drawn:
    """Pictures of `captions` with `seeds` by `method`, as tokens."""
    return Decoder(family, method, captions, seeds).run(watch)
