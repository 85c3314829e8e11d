"""A family of tiny random models, for tests of what is drawn with it."""

import torch
from torch import nn

from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import DeviceParts
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.interval_head import IntervalHead
from fleet.models.transformer import Transformer, TransformerConfig
from simulations.evaluation.family import Family

GRID = 4
VOCAB = 24
WORDS = ("a", "b", "c", "d")


def tiny_family(seed: int = 0) -> Family:
    """16 tokens a picture, 24 codes, four words."""
    torch.manual_seed(seed)
    cloud, device = _transformer(2, 32), _transformer(1, 16)
    head = IntervalHead(device.output, rank=4)
    _spread(head, 0.5)
    tokenizer = ImageTokenizer(
        ImageTokenizerConfig(
            channels=8,
            channel_multipliers=(1, 1),
            latent_channels=8,
            codebook_size=VOCAB,
            norm_groups=4,
        )
    )
    feature = IntervalFeature(32)
    _spread(feature, 0.3)
    feature.scale.fill_(0.05)
    return Family(
        version="tiny",
        cloud=cloud,
        device=device,
        parts=DeviceParts(device, head.eval()),
        projection=FeatureProjection(16).eval(),
        feature=feature.eval(),
        tokenizer=tokenizer.eval(),
        vocabulary=CaptionVocabulary.from_captions([" ".join(WORDS)]),
    )


def _transformer(layers: int, dim: int) -> Transformer:
    config = TransformerConfig(layers, 2, dim, 2 * dim, VOCAB, GRID, len(WORDS) + 2, caption_dim=16)
    model = Transformer(config).eval()
    _spread(model, 0.25)
    return model


@torch.no_grad()
def _spread(module: nn.Module, size: float) -> None:
    for value in module.parameters():
        value.normal_(std=size)
