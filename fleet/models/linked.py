"""A cloud model at work from the files it was released in, whoever's layout they have."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from fleet.errors import BundleError, InvalidInputError, OutputError
from fleet.models.caption import Captions, ClassCaptions
from fleet.models.caption_features import (
    FeatureCache,
    FeatureCaptions,
    FeatureFile,
    FeatureSource,
    T5Encoder,
)
from fleet.models.checkpoint import load_weights
from fleet.models.conditions import Condition, Prompt
from fleet.models.drafter import Start
from fleet.models.formats.chameleon import Vocabulary, load_chameleon
from fleet.models.formats.janus import JanusVocabulary, load_janus
from fleet.models.formats.llamagen import load_llamagen
from fleet.models.formats.vq import load_vq
from fleet.models.image_tokenizer import ImageTokenizer, to_pixels
from fleet.models.interval_feature import IntervalFeature
from fleet.models.linked_config import DTYPES, CaptionSource, Kind, LinkedConfig
from fleet.models.prompts import PromptCaptions, PromptStyle
from fleet.models.signing import read_file, replace_file
from fleet.models.spans import SpanEngine
from fleet.models.torch_model import INTERVAL_FEATURE, CloudModel
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.protocol.condition import pack_condition

_CAPTION_CACHE = "captions"
# Chameleon's codes have lengths of their own; the others' are on the unit sphere.
_UNIT_CODES: dict[Kind, bool] = {"llamagen": True, "chameleon": False, "janus": True}


@dataclass(frozen=True, slots=True, eq=False)
class LinkedModel(CloudModel):
    """Its conditions come from classes, from caption features or from prompts of text tokens."""

    captions: Captions

    @torch.inference_mode()
    def condition_pair(self, words: Sequence[int]) -> Condition | Prompt:
        """See `CloudModel.condition_pair`; `words` are what `captions.encode` returns."""
        model, device = self.engine.transformer, self.engine.device
        match self.captions:
            case ClassCaptions(classes):
                return model.condition_classes(torch.tensor([words[0], classes], device=device))
            case PromptCaptions() as prompts:
                ids, valid = prompts.pair(words)
                return model.prompt(ids.to(device), valid.to(device))
            case FeatureCaptions() as captions:
                features, valid = captions.features(tuple(words))
                dtype = model.tok_embeddings.weight.dtype
                features = features.to(device, dtype).expand(2, -1, -1)
                withheld = torch.tensor([False, True], device=device)
                valid = valid.to(device).expand(2, -1)
                return model.condition_features(features, valid, withheld)
            case other:
                raise TypeError(f"no condition is made of {type(other).__name__}")

    def told(self, condition: Condition | Prompt) -> bytes:
        """See `CloudModel.told`."""
        return pack_condition(Start.of(condition).sent)


def load_linked(folder: Path, device: str = "cpu") -> LinkedModel:
    """Read a linked model from its files.

    Raises:
        BundleError: The configuration is wrong, or a file is gone or not the one that was added.
        InvalidInputError: A file cannot be read.
    """
    config = LinkedConfig.read(folder)
    for stamp in (config.weights, config.tokenizer):
        stamp.check()
    transformer = read_transformer(config)
    captions = captions_of(config, transformer.config, folder)
    # A fresh one adds exactly nothing.
    feature = IntervalFeature(transformer.config.dim)
    if config.interval_feature is not None:
        _fill(feature, folder, config.interval_feature)
    engine = SpanEngine(transformer.to(device))
    return LinkedModel(config.family, config.version, engine, feature.to(device).eval(), captions)


def add_interval_feature(folder: Path, feature: IntervalFeature) -> LinkedConfig:
    """Put a trained feature into a linked model's folder, which makes it another version.

    Raises:
        BundleError: The configuration is wrong.
        OutputError: The folder cannot be written.
    """
    config = LinkedConfig.read(folder)
    content = save({name: value.contiguous() for name, value in feature.state_dict().items()})
    try:
        replace_file(folder / INTERVAL_FEATURE, content)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    config = config.model_copy(update={"interval_feature": sha256(content).hexdigest()})
    config.write(folder)
    return config


def read_transformer(config: LinkedConfig) -> Transformer:
    """Read the token model that a configuration names.

    Raises:
        InvalidInputError: A file cannot be read, or holds another model.
    """
    path, dtype = config.weights.path, DTYPES[config.dtype]
    if config.kind == "llamagen":
        return load_llamagen(path, config.grid, dtype=dtype, heads=config.heads)
    if config.prompt_length is None:
        raise InvalidInputError("a model that reads prompts needs their length: add it again")
    sizes = {"prompt_length": config.prompt_length, "grid": config.grid}
    if config.kind == "janus":
        return load_janus(path, heads=config.heads, dtype=dtype, **sizes)
    return load_chameleon(path, Vocabulary.read(_source(config).path), dtype=dtype, **sizes)


def linked_tokenizer(folder: Path) -> ImageTokenizer:
    """Read the image tokenizer of a linked model.

    Raises:
        BundleError: The configuration is wrong, or the file is gone or not the one that was added.
        InvalidInputError: The file cannot be read.
    """
    config = LinkedConfig.read(folder)
    config.tokenizer.check()
    return read_tokenizer(config.kind, config.tokenizer.path)


def read_tokenizer(kind: Kind, path: Path) -> ImageTokenizer:
    """Read an image tokenizer of a kind of model.

    Raises:
        InvalidInputError: The file cannot be read, or holds none.
    """
    return load_vq(path, unit_codes=_UNIT_CODES[kind])


@torch.inference_mode()
def decode_tokens(tokenizer: ImageTokenizer, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the picture [side, side, 3] of all its tokens [T]."""
    pixels: NDArray[np.uint8] = to_pixels(tokenizer.decode(torch.from_numpy(tokens)[None]))[
        0
    ].numpy()
    return pixels


def captions_of(config: LinkedConfig, sizes: TransformerConfig, folder: Path) -> Captions:
    """Return what reads captions for a model; `folder` keeps features that an encoder made.

    Raises:
        InvalidInputError: The source is missing, cannot be read, or is not the model's.
    """
    if sizes.n_class:
        return ClassCaptions(sizes.n_class)
    source = _source(config)
    if sizes.has_prompt:
        style: PromptStyle = (
            JanusVocabulary.read(source.path)
            if config.kind == "janus"
            else Vocabulary.read(source.path)
        )
        return PromptCaptions(source.path, style, sizes.caption_length)
    features: FeatureSource
    if source.kind == "file":
        features = FeatureFile(source.path)
    else:
        encoder = T5Encoder(source.path, sizes.caption_length)
        features = FeatureCache(encoder, folder / _CAPTION_CACHE)
    return FeatureCaptions(features, sizes.caption_length, sizes.caption_dim)


def _fill(feature: IntervalFeature, folder: Path, expected: str) -> None:
    path = folder / INTERVAL_FEATURE
    content = read_file(path)
    if sha256(content).hexdigest() != expected:
        raise BundleError(
            f"{path} is not what was exported: add the model again, then export the drafter again"
        )
    try:
        load_weights(feature, load(content))
    except (SafetensorError, InvalidInputError) as error:
        raise BundleError(f"{path} does not hold the weights it should: {error}") from error


def _source(config: LinkedConfig) -> CaptionSource:
    if config.captions is None:
        raise InvalidInputError(
            "the model reads captions as T5 features: name a folder with a T5 or a file of features"
        )
    return config.captions
