"""Thresholds for a budget of cloud calls, and the figures of the pair on validation pictures."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fleet.decoding.uncertainty import perturbation
from fleet.models.checkpoint import DeviceParts
from fleet.models.interval_head import interval_law, scores
from fleet.models.transformer import Transformer, guide
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
CAPTIONS = 200
VALIDATION_PICTURES = 244
_PART = 20


@dataclass(frozen=True)
class Pair:
    """A cloud model, its device model, and the tokenizer's codes [V, d] of length one."""

    cloud: Transformer
    device: DeviceParts
    codes: Tensor


def calibrate(
    work: Path, pair: Pair, examples: Examples, sampling: SamplingRule, seed: int, bar: Bar
) -> None:
    """Write `calibration.json`, of one sampling, and `metrics.json`."""
    cloud, device, codes = pair.cloud, pair.device, pair.codes
    half = CAPTIONS // 2
    drawn = [examples.take(split, half).captions for split in ("train", "validation")]
    bar.show(0.0, f"guidance {sampling.guidance:g}")
    quantiles = np.quantile(
        scores_along(pair, torch.cat(drawn), sampling, seed), 1 - CALL_SHARE, axis=0
    )
    thresholds = dict(zip(CALIBRATED, map(float, quantiles), strict=True))
    bar.show(0.5, "validation")
    calibration = {
        "call_budget": CALL_BUDGET,
        "prefix_share": PREFIX_SHARE,
        "call_share": CALL_SHARE,
        "captions": 2 * half,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "thresholds": {f"{sampling.guidance:g}": thresholds},
    }
    _write(work / "calibration.json", calibration)
    batch = examples.take("validation", VALIDATION_PICTURES)
    _write(work / "metrics.json", summarise(compare(cloud, device, codes, batch), CALL_SHARE))


@torch.no_grad()
def scores_along(
    pair: Pair, captions: Tensor, rule: SamplingRule, seed: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the device's scores [N, 7], after the prefix, along pictures that the cloud draws.

    They are in the order of `CALIBRATED`. What a device and the cloud draw together is near what
    the cloud draws; left alone, a device drifts into flat regions of which it is too sure.
    """
    transformer, head = pair.device.transformer, pair.device.head
    first = int(PREFIX_SHARE * transformer.config.n_token)
    generator = torch.Generator().manual_seed(seed)
    seen: list[Tensor] = []
    for words in captions.split(_PART):  # a cache of all of them would be far slower
        ids = draw_images(pair.cloud, words, rule, generator)
        hidden = transformer.hidden(ids[:, :-1], words)[:, first:].flatten(0, 1)
        withheld = torch.ones(len(words), dtype=torch.bool)
        without = transformer.hidden(ids[:, :-1], words, withheld)[:, first:].flatten(0, 1)
        logits = guide(transformer.output(hidden), transformer.output(without), rule.guidance)
        said = scores(interval_law(logits, head.radius(hidden)), pair.codes)
        tempered = torch.from_numpy(perturbation(logits.numpy())[:, None])
        seen.append(torch.cat([said.double(), tempered], dim=-1))
    return torch.cat(seen).numpy()


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
