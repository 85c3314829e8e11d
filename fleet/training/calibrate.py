"""Thresholds for a budget of cloud calls, and the figures of the pair on validation pictures."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fleet.decoding.uncertainty import perturbation
from fleet.models.checkpoint import DeviceParts
from fleet.models.interval_head import interval_law, scores
from fleet.models.transformer import Transformer
from fleet.prediction import SCORE_NAMES
from fleet.training.budget import Bar
from fleet.training.examples import Examples
from fleet.training.metrics import compare, summarise
from fleet.training.sampling import SamplingRule, draw_images

CALL_BUDGET = 0.30
PREFIX_SHARE = 0.06
# The prefix is made by the cloud, so fewer of the other tokens may be asked about.
CALL_SHARE = (CALL_BUDGET - PREFIX_SHARE) / (1 - PREFIX_SHARE)
# What gets a threshold: the graph's scores, and the one that comes from its logits.
CALIBRATED = (*SCORE_NAMES, "perturbation")
GUIDANCES = (1.0, 2.0, 3.0)
CAPTIONS = 200
VALIDATION_PICTURES = 244


@dataclass(frozen=True)
class Pair:
    """A cloud model, its device model, and the tokenizer's codes [V, d] of length one."""

    cloud: Transformer
    device: DeviceParts
    codes: Tensor


def calibrate(
    work: Path, pair: Pair, examples: Examples, sampling: SamplingRule, seed: int, bar: Bar
) -> None:
    """Write `calibration.json` and `metrics.json`; the guidance of `sampling` is one of several."""
    cloud, device, codes = pair.cloud, pair.device, pair.codes
    half = CAPTIONS // 2
    drawn = [examples.take(split, half).captions for split in ("train", "validation")]
    thresholds = {}
    guidances = sorted({*GUIDANCES, sampling.guidance})
    for index, guidance in enumerate(guidances):
        bar.show(index / (len(guidances) + 1), f"guidance {guidance:g}")
        rule = replace(sampling, guidance=guidance)
        seen = free_running_scores(device, codes, torch.cat(drawn), rule, seed)
        quantiles = np.quantile(seen, 1 - CALL_SHARE, axis=0)
        thresholds[f"{guidance:g}"] = dict(zip(CALIBRATED, map(float, quantiles), strict=True))
    bar.show(len(guidances) / (len(guidances) + 1), "validation")
    calibration = {
        "call_budget": CALL_BUDGET,
        "prefix_share": PREFIX_SHARE,
        "call_share": CALL_SHARE,
        "captions": 2 * half,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "thresholds": thresholds,
    }
    _write(work / "calibration.json", calibration)
    batch = examples.take("validation", VALIDATION_PICTURES)
    _write(work / "metrics.json", summarise(compare(cloud, device, codes, batch), CALL_SHARE))


def free_running_scores(
    device: DeviceParts, codes: Tensor, captions: Tensor, rule: SamplingRule, seed: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the scores [N, 7] of the tokens after the prefix of pictures drawn by the device.

    They are in the order of `CALIBRATED`.
    """
    prefix = int(PREFIX_SHARE * device.transformer.config.n_token)
    seen: list[Tensor] = []

    def watch(position: int, hidden: Tensor, logits: Tensor) -> None:
        if position >= prefix:
            said = scores(interval_law(logits, device.head.radius(hidden)), codes)
            tempered = torch.from_numpy(perturbation(logits.numpy())[:, None])
            seen.append(torch.cat([said.double(), tempered], dim=-1))

    generator = torch.Generator().manual_seed(seed)
    draw_images(device.transformer, captions, rule, generator, watch)
    return torch.stack(seen).flatten(0, 1).numpy()


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
