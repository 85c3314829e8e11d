"""Rules that keep the device's draft or ask the cloud about it, position by position."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.accept import START, Policy, Track, asks, follow
from fleet.decoding.residual import acceptance, correction
from fleet.prediction import SCORE_NAMES
from simulations.evaluation.moment import AMENDED, CORRECTED, LOCAL, PREFIX, VERIFIED, Moment
from simulations.evaluation.rules.base import NO_BAR, Bar, Settled, all_of, settled

Mask = NDArray[np.bool_]
Coupling = Literal["gumbel", "residual"]

_ACCEPT = 0  # the place among a position's uniform numbers


@dataclass(frozen=True, slots=True)
class Cloud:
    """Every token is the cloud's."""

    uses_device: ClassVar[bool] = False
    uses_cloud: ClassVar[bool] = True
    bar: ClassVar[Bar] = NO_BAR

    def begin(self, count: int) -> "Cloud":  # noqa: ARG002  # it remembers nothing
        return self

    def settle(self, moment: Moment) -> Settled:
        return settled(moment.own, all_of(len(moment.seeds), PREFIX))


@dataclass(frozen=True, slots=True)
class Device:
    """Every token is the device's; behind a long prefix it is CoDe's split (arXiv:2411.17787)."""

    uses_device: ClassVar[bool] = True
    uses_cloud: ClassVar[bool] = False
    bar: ClassVar[Bar] = NO_BAR

    def begin(self, count: int) -> "Device":  # noqa: ARG002  # it remembers nothing
        return self

    def settle(self, moment: Moment) -> Settled:
        return settled(moment.drafts, all_of(len(moment.seeds), LOCAL))


@dataclass(frozen=True, slots=True)
class Gate:
    """The device's draft where the policy lets it pass, else the cloud's word.

    Attributes:
        policy: Which positions the cloud is asked about; the fleet's own.
        coupling: How a draft is judged: by the shared noise, or by acceptance and residual
            (where the cloud knows the draft's law, as it does with a copy of the device model).
        amend_beyond: The hub, which sees its own draw for kept tokens too, replaces those whose
            code is farther than this (squared, unit-length codes) from it; infinite for never.
    """

    policy: Policy
    coupling: Coupling = "gumbel"
    amend_beyond: float = np.inf
    uses_device: ClassVar[bool] = True
    uses_cloud: ClassVar[bool] = True

    @property
    def bar(self) -> Bar:
        name = self.policy.score
        return (name, self.policy.threshold) if name in SCORE_NAMES else NO_BAR

    def begin(self, count: int) -> "RunningGate":  # noqa: ARG002  # a track begins as one number
        return RunningGate(self)


@dataclass(slots=True, eq=False)
class RunningGate:
    """A gate, and what the decisions so far leave for the next one."""

    gate: Gate
    track: Track = START

    def settle(self, moment: Moment) -> Settled:
        policy = self.gate.policy
        score = moment.score(policy.score)
        asked = asks(policy, score, moment.position, self.track)
        self.track = follow(policy, self.track, asked)
        tokens, decisions = moment.drafts.copy(), np.where(asked, VERIFIED, LOCAL).astype(np.uint8)
        judged = self._judged(moment, asked)
        decisions[asked & (judged != moment.drafts)] = CORRECTED
        tokens[asked] = judged[asked]
        if np.isfinite(self.gate.amend_beyond):
            amended = ~asked & (harm(moment) > self.gate.amend_beyond)
            tokens[amended], decisions[amended] = moment.own[amended], AMENDED
        return Settled(tokens, decisions, np.zeros(len(tokens), np.uint8), score)

    def _judged(self, moment: Moment, asked: Mask) -> NDArray[np.int64]:
        if self.gate.coupling == "gumbel":
            return moment.own
        return judge_by_residual(moment, np.flatnonzero(asked))


def judge_by_residual(moment: Moment, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The drafts [B] after acceptance and residual on the pictures `rows`."""
    target, draft, tokens = moment.cloud_law, moment.device_law, moment.drafts.copy()
    stands = acceptance(target[rows], draft[rows], 1.0)
    own = np.take_along_axis(stands, tokens[rows, None], axis=1)[:, 0]
    refused = rows[moment.uniforms[rows, _ACCEPT] >= own]
    if len(refused):
        left = correction(target[refused], draft[refused], 1.0)
        tokens[refused] = moment.draw_other(left, refused)
    return tokens


def harm(moment: Moment) -> NDArray[np.float64]:
    """Squared distance [B] in the codebook between the device's draft and the cloud's draw."""
    codes = moment.family.codes.numpy()
    harm: NDArray[np.float64] = np.square(codes[moment.drafts] - codes[moment.own]).sum(axis=1)
    return harm
