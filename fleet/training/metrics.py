"""What a device model's intervals and scores are worth against the cloud, teacher-forced."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.decoding.noise import gumbel
from fleet.models.checkpoint import DeviceParts
from fleet.models.interval_head import interval_law, scores
from fleet.models.transformer import Transformer
from fleet.prediction import SCORE_NAMES
from fleet.training.examples import Batch
from fleet.training.losses import divergence, target_log_odds, total_variation

Figures = dict[str, float]
_PART = 16


@dataclass(frozen=True)
class Comparison:
    """Per position, flattened [N]: how device and cloud compare, and the device's scores."""

    distance: NDArray[np.float64]  # total variation
    harm: NDArray[np.float64]  # squared code distance of the two draws under one noise
    mismatch: NDArray[np.bool_]  # the draws differ
    greedy_mismatch: NDArray[np.bool_]
    coverage: NDArray[np.float64]  # share of probability whose error the radius covers
    scores: NDArray[np.float64]  # [N, 6]


@torch.no_grad()
def compare(cloud: Transformer, device: DeviceParts, codes: Tensor, batch: Batch) -> Comparison:
    """Compare both models on the positions of a batch, at guidance 1 and temperature 1."""
    parts = zip(batch.tokens.split(_PART), batch.captions.split(_PART), strict=True)
    compared = [
        _compare_part(cloud, device, codes, Batch(*part), _PART * index)
        for index, part in enumerate(parts)
    ]
    names = Comparison.__dataclass_fields__
    return Comparison(*(np.concatenate([getattr(c, name) for c in compared]) for name in names))


@torch.no_grad()
def monitor(target: Tensor, center: Tensor, radius: Tensor) -> Figures:
    """Return what the radii of N positions are worth, all arguments [N, V].

    `log_radius` is the mean over codes, weighed by the mean of both laws, as the coverage is.
    """
    law, drafted = interval_law(center, radius), center.softmax(dim=-1)
    weight = (target + drafted) / 2
    covered = (target_log_odds(target) - law.log_odds).abs() <= law.radius
    bound = torch.minimum(law.below.sum(dim=-1), law.above.sum(dim=-1))
    distance = total_variation(target, drafted)
    columns = {
        "uncertainty": law.width.sum(dim=-1) * law.width.std(dim=-1, correction=0),
        "bound": bound,
        "entropy": -(drafted * law.log_center).sum(dim=-1),
    }
    ranked = {
        f"spearman_{name}": spearman(_flat(score), _flat(distance))
        for name, score in columns.items()
    }
    return {
        "kl": float(divergence(target, center.log_softmax(dim=-1)).mean()),
        "tv": float(distance.mean()),
        "log_radius": float((weight * radius.clamp(min=1e-9).log()).sum(dim=-1).mean()),
        "coverage": float((weight * covered).sum(dim=-1).mean()),
        "beyond_bound": float((distance > bound + 1e-6).float().mean()),
        **ranked,
    }


def summarise(compared: Comparison, call_share: float) -> dict[str, Figures]:
    """Return the overall figures, and one row of figures a score at the given share of calls."""
    distance, bound = compared.distance, compared.scores[:, SCORE_NAMES.index("rejection_bound")]
    table = {
        "overall": {
            "coverage": float(compared.coverage.mean()),
            "tv": float(distance.mean()),
            "tv_within_bound": float((distance <= bound + 1e-6).mean()),
            "gumbel_match": float(1 - compared.mismatch.mean()),
            "greedy_match": float(1 - compared.greedy_mismatch.mean()),
            "harm": float(compared.harm.mean()),
        }
    }
    columns = dict(zip(SCORE_NAMES, compared.scores.T, strict=True))
    columns |= {
        "random": np.random.default_rng(0).random(len(distance)),
        "oracle_tv": distance,
        "oracle_harm": compared.harm,
    }
    for name, score in columns.items():
        table[name] = _row(score, compared, call_share)
    return table


def spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the rank correlation, ties sharing their mean rank; NaN where one never varies."""
    ranks = _ranks(first), _ranks(second)
    if any(np.ptp(each) == 0 for each in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def _row(score: NDArray[np.float64], compared: Comparison, call_share: float) -> Figures:
    called = np.zeros(len(score), dtype=bool)
    called[np.argsort(-score, kind="stable")[: round(call_share * len(score))]] = True
    return {
        "spearman_tv": spearman(score, compared.distance),
        "spearman_harm": spearman(score, compared.harm),
        "tv_left": float(compared.distance[~called].mean()),
        "mismatches_caught": float(compared.mismatch[called].sum() / compared.mismatch.sum()),
        "harm_caught": float(compared.harm[called].sum() / compared.harm.sum()),
    }


def _compare_part(
    cloud: Transformer, device: DeviceParts, codes: Tensor, batch: Batch, seed: int
) -> Comparison:
    target = cloud(batch.tokens[:, :-1], batch.captions)[1].softmax(dim=-1)
    hidden, _ = device.transformer(batch.tokens[:, :-1], batch.captions)
    center, radius = device.head(hidden)
    law, drafted = interval_law(center, radius), center.softmax(dim=-1)
    noise = _noise(seed, batch.tokens.shape, target.shape[-1])
    ours, theirs = (p.log().add(noise).argmax(dim=-1) for p in (drafted, target))
    covered = (target_log_odds(target) - law.log_odds).abs() <= law.radius
    weight = (target + drafted) / 2
    return Comparison(
        _flat(total_variation(target, drafted)),
        _flat((codes[ours] - codes[theirs]).square().sum(dim=-1)),
        (ours != theirs).flatten().numpy(),
        (target.argmax(dim=-1) != drafted.argmax(dim=-1)).flatten().numpy(),
        _flat((weight * covered).sum(dim=-1)),
        scores(law, codes).flatten(0, 1).double().numpy(),
    )


def _noise(seed: int, shape: torch.Size, codes: int) -> Tensor:
    positions = np.arange(shape[1], dtype=np.int64)
    rows = [gumbel(seed + index, positions, codes) for index in range(shape[0])]
    return torch.from_numpy(np.stack(rows))


def _flat(values: Tensor) -> NDArray[np.float64]:
    flat: NDArray[np.float64] = values.flatten().double().numpy()
    return flat


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last: NDArray[np.float64] = counts.cumsum().astype(np.float64)
    mean_rank: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return mean_rank
