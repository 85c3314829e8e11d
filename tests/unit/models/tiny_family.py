"""A family of tiny models with random weights, as a training run would leave it in its folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import save_checkpoint, save_tokenizer
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.interval_head import IntervalHead
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.prediction import SCORE_NAMES

CAPTIONS = ["google: red heart", "twitter: a cat", "fluent: grinning face with big eyes"]
CODES = 61
GRID = 5
THRESHOLDS = {name: 0.25 * (index + 1) for index, name in enumerate(SCORE_NAMES)}


def write_work(work: Path) -> None:
    """Write all checkpoints and files that an export reads."""
    torch.manual_seed(11)
    vocabulary = CaptionVocabulary.from_captions(CAPTIONS)
    vocabulary.save(work / "vocabulary.json")
    sizes: dict[str, Any] = {
        "ffn": 48,
        "vocab_size": CODES,
        "grid": GRID,
        "n_word": len(vocabulary),
        "sketch_slots": 3,
        "sketch_width": 6,
    }
    cloud = Transformer(TransformerConfig(n_layer=2, n_head=2, dim=32, caption_dim=16, **sizes))
    device = Transformer(TransformerConfig(n_layer=2, n_head=2, dim=16, caption_dim=16, **sizes))
    head = IntervalHead(device.output, rank=4)
    feature, projection = IntervalFeature(cloud.config.dim), FeatureProjection(device.config.dim)
    feature.scale.copy_(torch.rand(len(feature.scale)) + 0.01)
    tokenizer = ImageTokenizer(
        ImageTokenizerConfig(
            channels=8, channel_multipliers=(1, 2), latent_channels=8, codebook_size=CODES
        )
    )
    for module in (cloud, device, head, feature, projection):
        _randomise(module)
    save_checkpoint(work / "cloud.pt", _payload(cloud))
    save_checkpoint(
        work / "device.pt", {**_payload(device), "head": head.state_dict(), "rank": head.rank}
    )
    halves = {"projection": projection.state_dict(), "feature": feature.state_dict()}
    save_checkpoint(work / "adapter.pt", halves)
    save_tokenizer(work / "tokenizer.pt", tokenizer)
    calibration = {
        "call_budget": 0.3,
        "prefix_share": 0.1,
        "temperature": 0.9,
        "top_k": 20,
        "thresholds": {"2": THRESHOLDS},
    }
    (work / "calibration.json").write_text(json.dumps(calibration))


def _payload(transformer: Transformer) -> dict[str, object]:
    return {"config": asdict(transformer.config), "model": transformer.state_dict()}


def _randomise(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
