"""Flower's strategies by name, one of our own, and what of a strategy must outlive a restart."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

from fleet.errors import InvalidInputError
from fleet.federation import codec
from fleet.federation.plan import STRATEGIES

_STATE = ("m_t", "v_t")  # FedAdam's moments, by array name
_TRIM = 0.2


@dataclass(frozen=True, slots=True)
class Privacy:
    """Central differential privacy of updates: clipped to a norm, and Gaussian noise added."""

    noise: float  # standard deviation over the clipping norm, of the sum
    clip: float
    delta: float
    max_epsilon: float | None
    population: int


class TrimmedMean(flower.FedAvg):
    """The weighted mean, coordinate by coordinate, without a share of weight at either end.

    With equal weights, and a share that is a whole number of nodes, it is Flower's FedTrimmedAvg
    (arXiv:1803.01498); with others, a node moves a coordinate no further than its neighbours in
    order that hold the trimmed weight.
    """

    def __init__(self, trim: float = _TRIM, **options: Any) -> None:
        super().__init__(**options)
        self.trim = trim

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002 - Flower's signature
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See FedAvg."""
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid:
            return None, None
        contents = [message.content for message in valid]
        weights = np.array([_weight(message, self.weighted_by_key) for message in valid])
        stacks = [codec.from_record(next(iter(c.array_records.values()))) for c in contents]
        means = {
            name: weighted_trimmed_mean(
                np.stack([each[name] for each in stacks]), weights, self.trim
            )
            for name in stacks[0]
        }
        return codec.to_record(means), self.train_metrics_aggr_fn(contents, self.weighted_by_key)


def weighted_trimmed_mean(
    values: NDArray[Any], weights: NDArray[np.float64], trim: float
) -> NDArray[np.float32]:
    """The mean [...] of values [n, ...] after `trim` of the weight [n] is cut from each end."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values.astype(np.float64), order, axis=0)
    share = (weights / weights.sum())[order]
    end = np.cumsum(share, axis=0)
    kept = np.clip(np.minimum(end, 1 - trim) - np.maximum(end - share, trim), 0, None)
    mean: NDArray[np.float64] = (kept * ordered).sum(axis=0) / kept.sum(axis=0)
    return mean.astype(np.float32)


def make_strategy(
    name: str, nodes: int, *, rate: float, proximal: float, privacy: Privacy | None
) -> flower.Strategy:
    """A strategy for a cohort of so many nodes, all of which are asked.

    Raises:
        InvalidInputError: There is no such strategy, or none that privacy can be counted for.
    """
    everybody: dict[str, Any] = {
        "fraction_train": 1.0,
        "fraction_evaluate": 1.0,
        # Who is asked is settled before: with more than are there, Flower would wait for ever.
        "min_train_nodes": 1,
        "min_evaluate_nodes": 1,
        "min_available_nodes": 1,
    }
    if privacy is not None:
        return _private(name, nodes, everybody, privacy)
    match name:
        case "trimmed-mean":
            return TrimmedMean(**everybody)
        case "fedavg":
            return flower.FedAvg(**everybody)
        case "fedadam":
            return flower.FedAdam(**everybody, eta=rate, tau=1e-4)
        case "fedprox":
            return flower.FedProx(**everybody, proximal_mu=proximal)
        case "multikrum":
            broken = max(int(_TRIM * nodes), 1)
            kept = max(nodes - broken, 1)
            return flower.MultiKrum(
                **everybody, num_malicious_nodes=broken, num_nodes_to_select=kept
            )
        case "median":
            return flower.FedMedian(**everybody)
        case _:
            known = ", ".join(STRATEGIES)
            raise InvalidInputError(f"there is no strategy {name!r}: take one of {known}")


def state_of(strategy: flower.Strategy) -> dict[str, NDArray[np.float64]]:
    """What a strategy remembers from round to round, as arrays by name."""
    state: dict[str, NDArray[np.float64]] = {}
    for part in _STATE:
        values = getattr(strategy, part, None) or {}
        state |= {f"{part}/{name}": np.asarray(value) for name, value in values.items()}
    return state


def restore(
    strategy: flower.Strategy,
    state: Mapping[str, NDArray[Any]],
    accountant: dict[str, Any] | None,
) -> None:
    """Gives a fresh strategy what `state_of` and `accountant_of` took from an earlier one."""
    if accountant is not None and hasattr(strategy, "accountant"):
        strategy.accountant.load_state_dict(accountant)
    for part in _STATE:
        found = {
            name.partition("/")[2]: value for name, value in state.items() if name.startswith(part)
        }
        if found:
            setattr(strategy, part, found)


def accountant_of(strategy: flower.Strategy) -> dict[str, Any] | None:
    """The privacy accountant's state, where there is one."""
    accountant = getattr(strategy, "accountant", None)
    return None if accountant is None else cast(dict[str, Any], accountant.state_dict())


def _private(name: str, nodes: int, everybody: dict[str, Any], privacy: Privacy) -> flower.Strategy:
    if name != "fedavg":
        raise InvalidInputError(
            f"privacy cannot be counted for the strategy {name!r}: take fedavg with it"
        )
    return flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(**everybody),
        noise_multiplier=privacy.noise,
        clipping_norm=privacy.clip,
        num_sampled_clients=nodes,
        accountant=_accountant(privacy),
    )


def _accountant(privacy: Privacy) -> Any:
    # Only private rounds need the accountant's package.
    from flwr.serverapp import (
        NeighboringRelation,
        PrivacyConfig,
        RdpAccountant,
        SamplingMethod,
    )

    config = PrivacyConfig(
        target_delta=privacy.delta,
        population_size=privacy.population,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
        max_epsilon=privacy.max_epsilon,
    )
    return RdpAccountant(config)


def _weight(message: Message, key: str) -> float:
    metrics = next(iter(message.content.metric_records.values()))
    return float(cast(float, metrics[key]))
