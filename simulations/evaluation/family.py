"""A family of models, in torch, as the evaluation runs it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.caption import CaptionVocabulary, pad_left
from fleet.models.checkpoint import (
    DeviceParts,
    load_checkpoint,
    load_device,
    load_tokenizer,
    load_transformer,
    load_weights,
)
from fleet.models.image_tokenizer import ImageTokenizer, to_pixels
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.transformer import Transformer

FILES = ("cloud.pt", "device.pt", "tokenizer.pt", "adapter.pt")
_DECODE_BATCH = 32


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Cloud and device model with all that stands between captions and pictures."""

    version: str  # hash of the checkpoints
    cloud: Transformer
    device: Transformer
    parts: DeviceParts
    projection: FeatureProjection
    feature: IntervalFeature
    tokenizer: ImageTokenizer
    vocabulary: CaptionVocabulary

    @property
    def tokens(self) -> int:
        """Tokens of one picture."""
        return self.cloud.config.n_token

    @property
    def codes(self) -> Tensor:
        """The code vectors [V, d], each of length one."""
        return self.tokenizer.quantize.codes.detach()

    def words(self, captions: list[str]) -> NDArray[np.int64]:
        """Word ids [B, C], padded on the left; words that training never saw become one id."""
        length = self.cloud.config.caption_length
        ids = [pad_left(self.vocabulary.encode_leniently(text), length) for text in captions]
        return np.array(ids, np.int64)

    @torch.inference_mode()
    def pictures(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Pictures [B, side, side, 3] of tokens [B, T]."""
        parts = torch.from_numpy(tokens.astype(np.int64)).split(_DECODE_BATCH)
        return np.concatenate([to_pixels(self.tokenizer.decode(ids)).numpy() for ids in parts])


def load_family(work: Path) -> Family:
    """The family in a training folder, rounded through fp16 where it ships in fp16.

    Without a trained adapter the cloud ignores features.

    Raises:
        InvalidInputError: A checkpoint is missing or cannot be read.
        FleetError: The weights do not fit their configuration.
    """
    cloud, parts = load_transformer(work / "cloud.pt"), load_device(work / "device.pt")
    projection = FeatureProjection(parts.transformer.config.dim)
    feature = IntervalFeature(cloud.config.dim)
    if (work / "adapter.pt").exists():
        state = load_checkpoint(work / "adapter.pt")
        load_weights(projection, state["projection"])
        load_weights(feature, state["feature"])
    tokenizer = load_tokenizer(work / "tokenizer.pt")
    for module in (cloud, feature, tokenizer):
        module.half().float()
    return Family(
        version=models_version(work),
        cloud=cloud,
        device=parts.transformer,
        parts=parts,
        projection=projection.eval(),
        feature=feature.eval(),
        tokenizer=tokenizer,
        vocabulary=CaptionVocabulary.load(work / "vocabulary.json"),
    )


def models_version(work: Path, names: tuple[str, ...] = FILES) -> str:
    """A hash of checkpoints in a training folder."""
    versions = [file_version(work / name) for name in names]
    return hashlib.sha256("".join(versions).encode()).hexdigest()[:12]


def file_version(path: Path) -> str:
    """A hash of one file's content; of nothing where there is none."""
    if not path.exists():
        return "none"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
