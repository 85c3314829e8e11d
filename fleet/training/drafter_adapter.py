"""The interval feature of a linked cloud and its drafter: where its training begins and ends."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.checkpoint import load_checkpoint, load_weights
from fleet.models.drafter import Drafter
from fleet.models.image_tokenizer import ImageTokenizer
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.linked import LinkedModel
from fleet.prediction import SCORE_NAMES, ScoreName
from fleet.training.adapter import CHECK_BATCHES, CHECKPOINT, AdapterRun, LocalPolicy
from fleet.training.calibrate import CALL_SHARE, PREFIX_SHARE
from fleet.training.drawings import Drawings
from fleet.training.histories import DrawnHistories
from fleet.training.sampling import SamplingRule


@dataclass(frozen=True)
class Adapter:
    """A trained interval feature: the device's half and the cloud's."""

    projection: FeatureProjection
    feature: IntervalFeature


@dataclass(frozen=True)
class DrafterPair:
    """A linked cloud, its drafter, and the drawings and image tokenizer of both."""

    cloud: LinkedModel
    drafter: Drafter
    drawings: Drawings
    tokenizer: ImageTokenizer


def start_adapter(
    pair: DrafterPair, score: ScoreName, sampling: SamplingRule, batch: int
) -> tuple[AdapterRun, DrawnHistories]:
    """Begin with an adapter that changes nothing, under the threshold that keeps the call budget.

    Raises:
        InvalidInputError: There are too few drawings.
    """
    guided, transformer = sampling.guidance > 1, pair.cloud.engine.transformer
    source = DrawnHistories(pair.cloud, pair.drafter, pair.drawings, guided)
    prefix = int(PREFIX_SHARE * transformer.config.n_token)
    head, codes = pair.drafter.head, unit_codes(pair.tokenizer)
    policy = LocalPolicy(score, np.inf, prefix, sampling)
    run = AdapterRun.start(transformer, head, codes, policy, batch)
    threshold = _threshold(run, source)
    policy = LocalPolicy(score, threshold, prefix, sampling)
    return AdapterRun.start(transformer, head, codes, policy, batch), source


def _threshold(run: AdapterRun, source: DrawnHistories) -> float:
    column, prefix = SCORE_NAMES.index(run.policy.score), run.policy.prefix
    seen = [
        run.said(clean)[2][:, prefix:, column].flatten()
        for clean in source.validation(run.batch, run.batch * CHECK_BATCHES)
    ]
    if not seen:
        raise InvalidInputError("no drawings for validation: draw at least ten pictures")
    return float(torch.cat(seen).double().quantile(1 - CALL_SHARE))


def load_adapter(work: Path, cloud: LinkedModel, sampling: SamplingRule) -> Adapter | None:
    """Read a trained adapter; None where none was trained.

    Raises:
        InvalidInputError: It was trained for another model or another sampling.
    """
    if not (work / CHECKPOINT).exists():
        return None
    state, dim = load_checkpoint(work / CHECKPOINT), cloud.engine.config.dim
    rule = SamplingRule(**state["policy"]["sampling"])
    if rule != sampling:
        raise InvalidInputError(
            f"{work / CHECKPOINT} was trained for guidance {rule.guidance:g}, temperature"
            f" {rule.temperature:g} and top-k {rule.top_k}: export with these, adapt again, or"
            " remove the file and export without the feature"
        )
    adapter = Adapter(FeatureProjection(dim), IntervalFeature(dim))
    load_weights(adapter.projection, state["projection"])
    load_weights(adapter.feature, state["feature"])
    return adapter


def unit_codes(tokenizer: ImageTokenizer) -> Tensor:
    """Return the codes [V, d] of a tokenizer, each of length one."""
    return F.normalize(tokenizer.quantize.codes.detach().float(), dim=-1)
