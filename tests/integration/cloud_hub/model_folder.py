"""A cloud model's folder with tiny random weights, as an export leaves it."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from fleet.models.bundle import VOCABULARY
from fleet.models.caption import CaptionVocabulary
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.interval_feature import IntervalFeature
from fleet.models.torch_model import (
    CLOUD_FORMAT,
    CONFIG,
    IMAGE_TOKENIZER,
    INTERVAL_FEATURE,
    TRANSFORMER,
)
from fleet.models.transformer import Transformer, TransformerConfig

CAPTION = "red heart"


def write_model(folder: Path) -> None:
    """Writes the folder."""
    torch.manual_seed(3)
    vocabulary = CaptionVocabulary.from_captions([CAPTION])
    config = TransformerConfig(
        n_layer=2,
        n_head=2,
        dim=32,
        ffn=64,
        vocab_size=40,
        grid=4,
        n_word=len(vocabulary),
        sketch_slots=2,
        sketch_width=4,
    )
    transformer, feature = Transformer(config), IntervalFeature(config.dim)
    folder.mkdir()
    vocabulary.save(folder / VOCABULARY)
    codes = ImageTokenizerConfig(
        channels=4, channel_multipliers=(1, 1), latent_channels=8, codebook_size=40, norm_groups=2
    )
    text = {
        "format": CLOUD_FORMAT,
        "family": "tiny",
        "transformer": asdict(config),
        "image_tokenizer": asdict(codes),
    }
    (folder / CONFIG).write_text(json.dumps(text))
    save_file(transformer.state_dict(), folder / TRANSFORMER)
    save_file(feature.state_dict(), folder / INTERVAL_FEATURE)
    save_file(ImageTokenizer(codes).state_dict(), folder / IMAGE_TOKENIZER)
