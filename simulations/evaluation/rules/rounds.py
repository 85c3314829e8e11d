"""Rules that draft ahead and let one cloud forward judge the drafts: chains and trees."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simulations.evaluation.moment import CORRECTED, PREFIX, VERIFIED, Moment
from simulations.evaluation.rules.base import NO_BAR, Bar, Settled
from simulations.evaluation.rules.candidates import (
    REFUSED,
    Choice,
    Neighbourhood,
    choose,
    choose_sampled,
    nearest_codes,
)
from simulations.evaluation.rules.draft_tree import DraftTree, grow_dynamic, grow_static
from simulations.evaluation.rules.gates import judge_by_residual
from simulations.evaluation.tree_attention import ROOT


@dataclass(frozen=True, slots=True)
class Chain:
    """Speculative sampling (arXiv:2211.17192): `window` drafts, each judged, then one more token.

    All tokens have the cloud's law. The drafts of a round depend on the settled tokens only, as
    long as they stand, so both models can be asked position by position.
    """

    window: int
    uses_device: ClassVar[bool] = True
    uses_cloud: ClassVar[bool] = True
    bar: ClassVar[Bar] = NO_BAR

    def begin(self, count: int) -> "RunningChain":
        return RunningChain(self.window, np.zeros(count, np.int64))


@dataclass(slots=True, eq=False)
class RunningChain:
    """How many drafts of its round each picture has behind it."""

    window: int
    drafted: NDArray[np.int64]  # [B]

    def settle(self, moment: Moment) -> Settled:
        left = moment.family.tokens - moment.position
        sent = np.where(self.drafted == 0, min(self.window, left), 0).astype(np.uint8)
        bonus = self.drafted == self.window
        tokens = judge_by_residual(moment, np.flatnonzero(~bonus))
        corrected = ~bonus & (tokens != moment.drafts)
        tokens[bonus] = moment.own[bonus]
        decisions = np.where(corrected, CORRECTED, VERIFIED).astype(np.uint8)
        decisions[bonus] = PREFIX
        self.drafted = np.where(bonus | corrected, 0, self.drafted + 1)
        return Settled(tokens, decisions, sent)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """LANTERN's bound (λ of LANTERN++ with `is_ratio`) over a share of the codebook as neighbours.

    LANTERN's k = 1000 is 6% of LlamaGen's 16,384 codes; a share carries over to other codebooks.
    """

    bound: float
    share: float
    is_ratio: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """A draft tree a round, judged by one cloud forward over all its nodes.

    Attributes:
        children: Of a static tree, at each depth; empty for EAGLE-2's dynamic tree.
        keep, depth, width: Of the dynamic tree: nodes judged, longest path, nodes expanded a level.
        relaxation: LANTERN's; without it all tokens have the cloud's law.
    """

    children: tuple[int, ...] = ()
    keep: int = 63
    depth: int = 5
    width: int = 8
    relaxation: Relaxation | None = None
    uses_device: ClassVar[bool] = True
    uses_cloud: ClassVar[bool] = True
    bar: ClassVar[Bar] = NO_BAR

    @property
    def levels(self) -> int:
        """How many times the device runs for one tree, after the law of the next token."""
        return (len(self.children) or self.depth) - 1

    def begin(self, count: int) -> "RunningTree":
        return RunningTree(self, [None] * count, [ROOT] * count)


@dataclass(slots=True, eq=False)
class RunningTree:
    """Each picture's tree, and the node it has come to; None where the next round begins."""

    rule: Tree
    trees: list[DraftTree | None]
    at: list[int]
    neighbourhood: Neighbourhood | None = None

    def settle(self, moment: Moment) -> Settled:
        if self.rule.relaxation and self.neighbourhood is None:
            self.neighbourhood = _neighbourhood(moment, self.rule.relaxation)
        fresh = np.array([row for row, tree in enumerate(self.trees) if tree is None], np.int64)
        sent = np.zeros(len(self.trees), np.uint8)
        if len(fresh):
            for row, tree in zip(fresh, self._grow(moment, fresh), strict=True):
                self.trees[row], self.at[row] = tree, ROOT
                sent[row] = len(tree.tokens)
        return self._walk(moment, sent)

    def _grow(self, moment: Moment, fresh: NDArray[np.int64]) -> list[DraftTree]:
        rule, device = self.rule, moment.device
        assert device is not None
        first, sampling = moment.device_law[fresh], moment.sampling
        if not rule.children:
            shape = (rule.keep, rule.depth, rule.width)
            return grow_dynamic(device, fresh, first, sampling, shape)
        rngs = [np.random.default_rng((moment.seeds[row], moment.position)) for row in fresh]
        return grow_static(device, fresh, first, sampling, rule.children, rngs)

    def _walk(self, moment: Moment, sent: NDArray[np.uint8]) -> Settled:
        tokens = np.zeros(len(self.trees), np.int64)
        decisions = np.full(len(self.trees), VERIFIED, np.uint8)
        left, ended = np.zeros_like(moment.cloud_law), []
        for row, tree in enumerate(self.trees):
            assert tree is not None
            children = tree.children(self.at[row])
            choice = self._choose(moment, row, tree, children)
            if choice.index != REFUSED:
                self.at[row] = int(children[choice.index])
                tokens[row] = tree.tokens[self.at[row]]
                continue
            left[row], self.trees[row] = choice.left, None
            ended.append(row)
            decisions[row] = CORRECTED if len(children) else PREFIX
        rows = np.array(ended, np.int64)
        tokens[rows] = moment.draw_other(left[rows], rows)
        return Settled(tokens, decisions, sent)

    def _choose(
        self, moment: Moment, row: int, tree: DraftTree, children: NDArray[np.int64]
    ) -> Choice:
        target, luck = moment.cloud_law[row], moment.uniforms[row]
        candidates = [int(token) for token in tree.tokens[children]]
        if not self.rule.children or not candidates:
            return choose(target, candidates, luck, self.neighbourhood)
        draft = tree.laws[self.at[row]]
        return choose_sampled(target, draft, candidates, luck, self.neighbourhood)


def _neighbourhood(moment: Moment, relaxation: Relaxation) -> Neighbourhood:
    codes = moment.family.codes.numpy()
    nearest = nearest_codes(codes, round(relaxation.share * len(codes)))
    return Neighbourhood(nearest, relaxation.bound, relaxation.is_ratio)
