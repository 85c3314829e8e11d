"""How rounds are run: every number that a person may choose, with its only default."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fleet.errors import InvalidInputError
from fleet.federation.gate import Limits
from fleet.federation.samples import cloud_number

StrategyName = Literal["trimmed-mean", "fedavg", "fedadam", "fedprox", "multikrum", "median"]
STRATEGIES: tuple[str, ...] = get_args(StrategyName)
LOSSES = ("inter-dro", "distillation")

_LEAST = {"rounds": 1, "steps": 1, "least_nodes": 1, "least_samples": 1, "least_gain": -math.inf}
_ABOVE_ZERO = {"batch", "rate", "deadline_s", "query_s", "quorum", "node_cap", "clip"}
_KINDS = {int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A run of rounds. As Flower's run configuration the names have dashes: `least-nodes`."""

    rounds: int = 3
    strategy: str = "trimmed-mean"
    rank: int = 16  # of the center's change; 0: a full matrix
    loss: str = "inter-dro"  # or distillation, without the robust term
    steps: int = 60  # of local training
    batch: int = 256
    rate: float = 3e-3
    server_rate: float = 0.01  # FedAdam's
    proximal: float = 0.01  # FedProx's mu
    least_nodes: int = 2
    most_nodes: int = 1000
    cloud: str = ""  # model whose laws count; empty: the one that a node heard last
    least_samples: int = 256
    most_samples: int = 20_000  # of a node; more do not raise its weight either
    deadline_s: float = 120.0  # of each phase
    quorum: float = 1.0  # share of answers after which the rest has `grace_s` left
    grace_s: float = 5.0
    query_s: float = 10.0  # to say what a node could do
    node_ball: float = 0.3  # nats by which nodes that differ may be weighed differently
    node_cap: float = 3.0  # most weight of a node, over the uniform one
    least_gain: float = 0.0  # by which the loss must fall, or the aggregate is discarded
    seed: int = 1
    noise: float = 0.0  # of private rounds, over `clip`; 0: not private
    clip: float = 1.0
    delta: float = 1e-5
    max_epsilon: float = 0.0  # 0: no bound

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Plan":
        """The plan of a run configuration; keys that are no part of a plan are left alone.

        Raises:
            InvalidInputError: A value has another type, or cannot be used.
        """
        given = {}
        for each in fields(cls):
            value = config.get(each.name.replace("_", "-"))
            if value is None:
                continue
            kind: type[Any] = type(getattr(cls(), each.name))
            if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
                raise InvalidInputError(f"{each.name} is {value!r}: give it {_KINDS[kind]}")
            given[each.name] = kind(value)
        return cls(**given)

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> "Plan":
        """A plan of some of its fields, the others at their defaults.

        Raises:
            InvalidInputError: There is no such field, or its value cannot be used.
        """
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidInputError(
                    f"a run of rounds has no {name!r}: take some of {', '.join(known)}"
                )
        return cls.from_config({name.replace("_", "-"): value for name, value in values.items()})

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> "Plan":
        """A plan of fields as a person writes them; see `from_fields`."""
        plain = cls()
        values: dict[str, Any] = {}
        for name, text in texts.items():
            kind: type[Any] = type(getattr(plain, name, ""))
            try:
                values[name] = kind(text)
            except ValueError as error:
                raise InvalidInputError(f"{name} is {text!r}: give it {_KINDS[kind]}") from error
        return cls.from_fields(values)

    def to_config(self) -> dict[str, Any]:
        """The run configuration that `from_config` reads."""
        return {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}

    def __post_init__(self) -> None:
        self._check_numbers()
        for name, known in (("loss", LOSSES), ("strategy", STRATEGIES)):
            if (value := getattr(self, name)) not in known:
                raise InvalidInputError(f"{name} is {value!r}: take one of {', '.join(known)}")
        if self.least_nodes > self.most_nodes:
            raise InvalidInputError(
                f"least_nodes is {self.least_nodes}, above most_nodes, {self.most_nodes}"
            )
        if self.noise and self.strategy != "fedavg":
            raise InvalidInputError("noise is counted for strategy=fedavg only: name that too")

    def _check_numbers(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), _LEAST.get(each.name, 0)
            if isinstance(value, int | float) and not least <= value < math.inf:
                raise InvalidInputError(f"{each.name} is {value}: it must be at least {least:g}")
            if not value and each.name in _ABOVE_ZERO:
                raise InvalidInputError(f"{each.name} is {value}: it must be above 0")
        if self.quorum > 1:
            raise InvalidInputError(f"quorum is {self.quorum}: a share between 0 and 1")

    @property
    def cloud_number(self) -> int:
        """What samples call the cloud model, or 0."""
        return cloud_number(self.cloud) if self.cloud else 0

    @property
    def limits(self) -> Limits:
        """What the gate lets in."""
        return Limits(most_examples=self.most_samples)


def texts_of(changes: Iterable[str]) -> dict[str, str]:
    """Fields of a plan, each written as KEY=VALUE, for `Plan.from_texts`.

    Raises:
        InvalidInputError: One is not of that form.
    """
    pairs = [change.partition("=") for change in changes]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidInputError(f"{name!r} is no KEY=VALUE")
    return {name.replace("-", "_"): value for name, _, value in pairs}
