"""What both models say of every draft of pictures that they draw together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, law, sharpen
from fleet.interval import MAX_RADIUS
from fleet.models.head_weights import HeadWeights
from fleet.models.interval_head import log_odds
from fleet.training.losses import target_log_odds
from simulations.drift.tastes import Wishes
from simulations.evaluation.decoder import decode
from simulations.evaluation.family import Family
from simulations.evaluation.methods import Method
from simulations.evaluation.moment import LOCAL, Moment
from simulations.evaluation.rules.base import Settled
from simulations.evaluation.sampling_rule import SamplingRule

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """P pictures, position by position after the prefix, n of them.

    Attributes:
        asked: [P, n], whether the cloud was asked about the draft.
        match: [P, n], whether the draft is what the cloud draws there with the same noise.
        tv: [P, n], the total variation of the two laws that are drawn from.
        covered: [P, n], the share of the cloud's law whose log-odds lie within the radius.
    """

    asked: Mask
    match: Mask
    tv: Floats
    covered: Floats

    def rows(self, part: slice) -> Self:
        """Some of the pictures."""
        return type(self)(*(getattr(self, name)[part] for name in Seen.__slots__))

    def save(self, path: Path) -> None:
        """Writes beside its place and moves there."""
        _save(path, {name: getattr(self, name) for name in Seen.__slots__})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            return cls(*(arrays[name] for name in Seen.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """What another head needs to speak of the same positions.

    Attributes:
        seeds: [P], of the pictures.
        first: The position after the prefix.
        hidden: [P, n, D], the device's hidden states with the caption.
        guided: [P, n, D], the guided ones.
        cloud: [P, n, V], the cloud's guided logits.
        own: [P, n], the cloud's draws.
    """

    seeds: NDArray[np.int64]
    first: int
    hidden: NDArray[np.float16]
    guided: NDArray[np.float16]
    cloud: NDArray[np.float16]
    own: NDArray[np.int64]

    def rows(self, part: slice) -> Self:
        """Some of the pictures."""
        values = {name: getattr(self, name) for name in States.__slots__}
        return type(self)(**{k: v if k == "first" else v[part] for k, v in values.items()})

    def save(self, path: Path) -> None:
        """Writes beside its place and moves there."""
        _save(path, {name: getattr(self, name) for name in States.__slots__})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote."""
        with np.load(path) as arrays:
            found = {name: arrays[name] for name in States.__slots__}
        return cls(**{**found, "first": int(found["first"])})


class _Watch:
    """Collects what the moments of a batch say; a `decoder.Watch`."""

    def __init__(self, prefix: int, *, keeps_states: bool) -> None:
        self.rows: dict[str, list[NDArray[np.generic]]] = {}
        self._prefix, self._keeps_states = prefix, keeps_states

    def __call__(self, moment: Moment, settled: Settled) -> None:
        if moment.position < self._prefix:
            return
        said, cloud = moment.said, moment.cloud_guided
        self._add("asked", settled.decisions != LOCAL)
        self._add("match", moment.drafts == moment.own)
        self._add("tv", _distance(moment.device_law, moment.cloud_law))
        self._add("covered", covered(cloud, said.logits, said.radius))
        if self._keeps_states and moment.device is not None:
            self._add("hidden", moment.device.hidden.numpy().astype(np.float16))
            self._add("guided", moment.device.guided_hidden.astype(np.float16))
            self._add("cloud", cloud.astype(np.float16))
            self._add("own", moment.own)

    def _add(self, name: str, values: NDArray[np.generic]) -> None:
        self.rows.setdefault(name, []).append(values)

    def of(self, name: str) -> NDArray[np.generic]:
        """What was collected [P, n, ...]."""
        return np.stack(self.rows[name], axis=1)


def draw_and_look(
    family: Family, method: Method, wishes: Wishes, *, keeps_states: bool = False
) -> tuple[Seen, States | None]:
    """Draws the pictures that are wished for, and says what was seen on the way."""
    watch = _Watch(method.prefix, keeps_states=keeps_states)
    decode(family, method, list(wishes.captions), list(wishes.seeds), watch)
    seen = Seen(*(watch.of(name) for name in Seen.__slots__))  # type: ignore[arg-type]
    if not keeps_states:
        return seen, None
    names = ("hidden", "guided", "cloud", "own")
    kept = {name: watch.of(name) for name in names}
    return seen, States(np.array(wishes.seeds), method.prefix, **kept)  # type: ignore[arg-type]


def look_again(
    states: States, head: HeadWeights, sampling: SamplingRule
) -> tuple[Mask, Floats, Floats]:
    """What drafts by another head would be at the same positions: match, TV and coverage [P, n]."""
    found: list[tuple[Mask, Floats, Floats]] = []
    positions = states.first + np.arange(states.own.shape[1])
    for row, seed in enumerate(states.seeds):
        center = states.guided[row].astype(np.float32) @ head.center.T
        cloud = states.cloud[row].astype(np.float32)
        ours, theirs = sharpen(center, sampling), sharpen(cloud, sampling)
        noise = gumbel(int(seed), positions, center.shape[-1])
        radius = _radius(head, states.hidden[row].astype(np.float32))
        found.append(
            (
                draw(ours, noise) == states.own[row],
                _distance(law(ours), law(theirs)),
                covered(cloud, torch.from_numpy(center), radius),
            )
        )
    match, distance, inside = (np.stack(part) for part in zip(*found, strict=True))
    return match, distance, inside


@torch.inference_mode()
def covered(cloud: Floats, center: torch.Tensor, radius: torch.Tensor) -> Floats:
    """The share [...] of the cloud's law whose log-odds lie within the radius of the device's.

    All arguments are [..., V]: guided logits of both, and the radius.
    """
    target = torch.from_numpy(cloud).softmax(dim=-1)
    inside = (target_log_odds(target) - log_odds(center)).abs() <= radius.clamp(max=MAX_RADIUS)
    share: Floats = (target * inside).sum(dim=-1).numpy()
    return share


def _radius(head: HeadWeights, hidden: Floats) -> torch.Tensor:
    narrow = hidden @ head.radius_down.T if len(head.radius_down) else hidden
    before = torch.from_numpy(narrow @ head.radius_up.T + head.radius_bias)
    return torch.nn.functional.softplus(before)


def _distance(first: NDArray[np.floating], second: NDArray[np.floating]) -> Floats:
    distance: Floats = (np.abs(first - second).sum(axis=-1) / 2).astype(np.float32)
    return distance


def _save(path: Path, arrays: dict[str, NDArray[np.generic] | int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(path)
