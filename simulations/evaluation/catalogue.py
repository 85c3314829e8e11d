"""The methods by name, at one sampling rule and one share of cloud calls."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fleet.decoding.accept import Policy
from fleet.errors import InvalidInputError
from fleet.prediction import SCORE_NAMES, ScoreName
from simulations.evaluation.methods import Exchange, Method
from simulations.evaluation.rules.base import Rule
from simulations.evaluation.rules.gates import Device, Gate
from simulations.evaluation.rules.oracle import Oracle, Sees
from simulations.evaluation.rules.rounds import Chain, Relaxation, Tree
from simulations.evaluation.sampling_rule import SamplingRule

CLOUD, DEVICE, OURS = "cloud-only", "device-only", "ours"
WINDOW = 8  # drafts of a round of speculative sampling
MAX_RUN = 12  # tokens without the cloud, where there is a cap
AMEND_BEYOND = 1.0  # squared distance of unit-length codes: 60 degrees apart
STATIC_TREE = (4, 2, 2, 1, 1)  # 60 nodes, depth 5
_LANTERN_SHARE = 1000 / 16_384
_LANTERN_PLUS_SHARE = 10 / 16_384


@dataclass(frozen=True, slots=True)
class Shipped:
    """The policy in force: what the fleet does unless told otherwise."""

    sampling: SamplingRule
    policy: Policy
    prefix: int

    @property
    def method(self) -> Method:
        """The policy as a method."""
        return Method(OURS, Gate(self.policy), self.sampling, self.prefix, use_features=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the methods of one table share."""

    shipped: Shipped
    sampling: SamplingRule
    rate: float  # share of the tokens after the prefix that the cloud is asked about
    tokens: int  # of a picture

    @property
    def row(self) -> int:
        """Tokens of a row of a picture."""
        return math.isqrt(self.tokens)

    @property
    def budget(self) -> float:
        """The share of all tokens that the cloud takes part in, prefix included."""
        share = self.shipped.prefix / self.tokens
        return share + (1 - share) * self.rate

    def gate(self, name: str, rule: Rule, exchange: Exchange = "window") -> Method:
        """A method with the shipped prefix and the interval feature."""
        prefix = self.shipped.prefix
        return Method(name, rule, self.sampling, prefix, use_features=True, exchange=exchange)


Maker = Callable[[Setting], Method]


def method(name: str, setting: Setting) -> Method:
    """The method called `name`; gates by a score still want their threshold (`budget.py`).

    Raises:
        InvalidInputError: There is no such method.
    """
    check_names((name,))
    if name in SCORE_NAMES:
        return _scored(name, setting)
    return _MAKERS[name](setting)


def check_names(names: tuple[str, ...]) -> None:
    """Refuse names of methods that do not exist.

    Raises:
        InvalidInputError: There is no such method.
    """
    if unknown := [name for name in names if name not in all_names()]:
        raise InvalidInputError(
            f"there is no method {unknown[0]!r}: take of {', '.join(all_names())}"
        )


def all_names() -> tuple[str, ...]:
    """Every method, in the order of the table."""
    return (CLOUD, DEVICE, OURS, *_MAKERS, *SCORE_NAMES)


def _scored(name: ScoreName | str, setting: Setting) -> Method:
    score = SCORE_NAMES[SCORE_NAMES.index(name)]
    return setting.gate(name, Gate(Policy(score, 0.0)))


def _own(setting: Setting, name: str, **changes: Any) -> Method:
    """Ours with something else about the gate."""
    return setting.gate(name, replace(Gate(setting.shipped.policy), **changes))


def _tracked(setting: Setting, name: str, **changes: Any) -> Method:
    """Ours with something else about the policy."""
    return setting.gate(name, Gate(replace(setting.shipped.policy, **changes)))


def _coin(setting: Setting) -> Policy:
    return Policy("random", 1 - setting.rate)


def _code(setting: Setting) -> Method:
    prefix = round(setting.budget * setting.tokens)
    return Method("CoDe", Device(), setting.sampling, prefix, exchange="wait")


def _oracle(setting: Setting, sees: Sees) -> Method:
    """Without the interval feature, so that what is corrected is the cloud's picture."""
    return Method(f"oracle-{sees}", Oracle(sees), setting.sampling, setting.shipped.prefix)


def _rounds(setting: Setting, name: str, rule: Rule) -> Method:
    return Method(name, rule, setting.sampling, exchange="rounds")


def _lantern(bound: float) -> Tree:
    return Tree(relaxation=Relaxation(bound, _LANTERN_SHARE))


def _lantern_plus(bound: float) -> Tree:
    relaxation = Relaxation(bound, _LANTERN_PLUS_SHARE, is_ratio=True)
    return Tree(children=STATIC_TREE, relaxation=relaxation)


_MAKERS: dict[str, Maker] = {
    "random": lambda s: s.gate("random", Gate(_coin(s))),
    "CIAR": lambda s: s.gate("CIAR", Gate(Policy("uncertainty", 0.0)), "wait"),
    "U-HLM": lambda s: s.gate("U-HLM", Gate(Policy("perturbation", 0.5), "residual"), "wait"),
    "CoDe": _code,
    "speculative": lambda s: _rounds(s, "speculative", Chain(WINDOW)),
    "EAGLE-2": lambda s: _rounds(s, "EAGLE-2", Tree()),
    "LANTERN": lambda s: _rounds(s, "LANTERN", _lantern(0.1)),
    "LANTERN 0.4": lambda s: _rounds(s, "LANTERN 0.4", _lantern(0.4)),
    "LANTERN++": lambda s: _rounds(s, "LANTERN++", _lantern_plus(5.0)),
    "ours+residual": lambda s: _own(s, "ours+residual", coupling="residual"),
    "ours+capped": lambda s: _tracked(s, "ours+capped", max_run=MAX_RUN),
    "ours+row starts": lambda s: _tracked(s, "ours+row starts", row_length=s.row),
    "ours+dynamic": lambda s: _tracked(s, "ours+dynamic", call_share=s.rate),
    "ours+budget": lambda s: _tracked(s, "ours+budget", call_share=s.rate, firm=True),
    "ours+deaf": lambda s: replace(_own(s, "ours+deaf"), use_features=False),
    "ours+amended": lambda s: _own(s, "ours+amended", amend_beyond=AMEND_BEYOND),
    "random+amended": lambda s: s.gate("random+amended", Gate(_coin(s), amend_beyond=AMEND_BEYOND)),
    "oracle-match": lambda s: _oracle(s, "match"),
    "oracle-harm": lambda s: _oracle(s, "harm"),
    "oracle-TV": lambda s: _oracle(s, "TV"),
}
