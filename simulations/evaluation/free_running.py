"""What intervals and scores hold along the pictures that a method itself draws."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.models.interval_head import interval_law
from fleet.prediction import SCORE_NAMES
from fleet.training.losses import target_log_odds
from fleet.training.metrics import spearman
from simulations.evaluation.captions import Assignment
from simulations.evaluation.decoder import decode
from simulations.evaluation.family import Family, models_version
from simulations.evaluation.jobs import CHUNK
from simulations.evaluation.methods import Method
from simulations.evaluation.metrics import Estimate, over_groups
from simulations.evaluation.moment import LOCAL, Moment
from simulations.evaluation.rules.base import Settled

_SLACK = 1e-6  # of a comparison of two sums over the codes
Values = NDArray[np.float32]
Positions = dict[str, Values]


@dataclass(frozen=True, slots=True)
class Holds:
    """Figures over the positions behind the prefix, with their spread over groups of pictures.

    Attributes:
        calls: Share of all tokens that the cloud takes part in.
        coverage: Share of probability whose log-odds error the radius covers; of the guided laws.
        distance: TV of the guided laws, before temperature and top-k: what B is to bound.
        within_bound: Share of the positions with that TV <= B.
        drawn_distance: TV of the laws that tokens are drawn from.
        drawn_within_bound: Share of the positions with this TV <= B.
        differ: Share of the positions at which the two draws of one noise differ.
        kept: Share at which they differ and the device's token stands.
        ranks: Spearman's correlation of each score with the TV of the laws that are drawn from.
    """

    method: Method
    calls: float
    coverage: Estimate
    distance: Estimate
    within_bound: Estimate
    drawn_distance: Estimate
    drawn_within_bound: Estimate
    differ: Estimate
    kept: Estimate
    ranks: dict[str, Estimate]


def look(family: Family, method: Method, captions: list[str], seeds: list[int]) -> Positions:
    """Arrays [N, T'] of the positions behind the prefix, and the scores [N, T', scores]."""
    seen: list[Positions] = []

    def watch(moment: Moment, found: Settled) -> None:
        if moment.position >= method.prefix:
            seen.append(_position(moment, found))

    decode(family, method, captions, seeds, watch)
    return {name: np.stack([each[name] for each in seen], axis=1) for name in seen[0]}


def seen(
    family: Family, method: Method, assignment: Assignment, count: int, work: Path, out: Path
) -> Positions:
    """What `look` finds along the first `count` pictures; chunks in `out` are not drawn again."""
    parts = []
    for start in range(0, count, CHUNK):
        end = min(start + CHUNK, count)
        name = f"seen-{method.key}-{models_version(work)}-{start}-{end}.npz"
        if not (out / name).exists():
            captions, seeds = assignment.captions[start:end], assignment.seeds[start:end]
            partial = out / f"{name}.partial.npz"
            np.savez_compressed(
                partial, allow_pickle=False, **look(family, method, captions, seeds)
            )
            partial.replace(out / name)
        parts.append(dict(np.load(out / name)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def holds(method: Method, at: Positions, groups: NDArray[np.int64]) -> Holds:
    """The figures of what was seen of pictures [N] of so many groups."""

    def share(values: NDArray[np.generic]) -> Estimate:
        return over_groups(lambda rows: float(values[rows].mean()), groups)

    def rank(index: int) -> Estimate:
        score = at["scores"][..., index]
        return over_groups(
            lambda rows: spearman(_flat(score[rows]), _flat(at["drawn_distance"][rows])), groups
        )

    bound = at["scores"][..., SCORE_NAMES.index("rejection_bound")] + _SLACK
    behind = at["distance"].shape[1] / (at["distance"].shape[1] + method.prefix)
    return Holds(
        method,
        1 - behind * float(at["kept"].mean()),
        share(at["coverage"]),
        share(at["distance"]),
        share(at["distance"] <= bound),
        share(at["drawn_distance"]),
        share(at["drawn_distance"] <= bound),
        share(at["differ"]),
        share(at["differ"] * at["kept"]),
        {name: rank(index) for index, name in enumerate(SCORE_NAMES)},
    )


@torch.inference_mode()
def _position(moment: Moment, found: Settled) -> Positions:
    said, target = moment.said, torch.from_numpy(moment.cloud_guided).softmax(dim=-1)
    law, drafted = interval_law(said.logits, said.radius), said.logits.softmax(dim=-1)
    covered = (target_log_odds(target) - law.log_odds).abs() <= law.radius
    weight = (target + drafted) / 2
    values: dict[str, NDArray[np.generic]] = {
        "coverage": (weight * covered).sum(dim=-1).numpy(),
        "distance": ((target - drafted).abs().sum(dim=-1) / 2).numpy(),
        "drawn_distance": np.abs(moment.device_law - moment.cloud_law).sum(axis=1) / 2,
        "differ": moment.drafts != moment.own,
        "kept": found.decisions == LOCAL,
        "scores": said.scores,
    }
    return {name: each.astype(np.float32) for name, each in values.items()}


def _flat(values: Values) -> NDArray[np.float64]:
    return values.ravel().astype(np.float64)
