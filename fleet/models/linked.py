"""A cloud model that stays in the files it was released in: a small folder points at them.

The files are large and somebody else's, so they are neither copied nor converted. They are
hashed when they are added, and known by size and modification time from then on; what changed is
refused, since pictures would silently change too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleet.errors import BundleError, InvalidInputError, OutputError
from fleet.ids import ModelVersion
from fleet.models.bundle import content_version
from fleet.models.caption import Captions, ClassCaptions
from fleet.models.caption_features import (
    FeatureCache,
    FeatureCaptions,
    FeatureFile,
    FeatureSource,
    T5Encoder,
)
from fleet.models.conditions import Condition
from fleet.models.drafter import Start
from fleet.models.formats.llamagen import load_llamagen
from fleet.models.formats.vq import load_vq
from fleet.models.image_tokenizer import ImageTokenizer
from fleet.models.interval_feature import IntervalFeature
from fleet.models.signing import read_file, replace_file
from fleet.models.spans import SpanEngine
from fleet.models.torch_model import CONFIG, CloudModel
from fleet.models.transformer import TransformerConfig
from fleet.protocol.condition import pack_condition

LINKED_FORMAT: Final = "ciar-linked-1"
_CAPTION_CACHE = "captions"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DtypeName = Literal["float32", "bfloat16"]


class FileStamp(BaseModel):
    """A file or folder that is pointed at, and what it was when it was added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    size: int = Field(ge=0)
    modified_ns: int
    sha256: str  # of the files' own hashes, in the order of their names

    @classmethod
    def of(cls, path: Path) -> "FileStamp":
        """Stamp what is at `path` now, a folder by all of its files; reads everything once.

        Raises:
            InvalidInputError: There is nothing, or nothing that can be read.
        """
        digest = sha256()
        try:
            for each in _files(path):
                with each.open("rb") as file:
                    digest.update(file_digest(file, "sha256").digest())
            size, modified = _size_and_time(path)
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
        hexadecimal = digest.hexdigest()
        return cls(path=path.resolve(), size=size, modified_ns=modified, sha256=hexadecimal)

    def check(self) -> None:
        """Hold the file against its stamp.

        Raises:
            BundleError: It is gone, or not what was added.
        """
        try:
            now = _size_and_time(self.path)
        except OSError as error:
            raise BundleError(
                f"{self.path} cannot be read ({error.strerror}): add the model again"
            ) from error
        if now != (self.size, self.modified_ns):
            raise BundleError(f"{self.path} is not what was added: add the model again")


class CaptionSource(BaseModel):
    """Where a text-conditional model's captions become features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["t5", "file"]
    path: Path


class LinkedConfig(BaseModel):
    """What `config.json` of a linked model holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ciar-linked-1"] = LINKED_FORMAT
    kind: Literal["llamagen"] = "llamagen"
    family: str = Field(min_length=1, max_length=64)
    weights: FileStamp
    tokenizer: FileStamp
    grid: int = Field(gt=0, le=64)
    heads: int | None = None  # only of sizes that nobody released
    dtype: DtypeName
    captions: CaptionSource | None = None  # None: classes

    @property
    def version(self) -> ModelVersion:
        """The version of the model: a hash of what it is made of, wherever that lies."""
        places = {"weights": {"path", "modified_ns"}, "tokenizer": {"path", "modified_ns"}}
        made_of = self.model_dump_json(exclude={**places, "captions": True})
        return content_version({CONFIG: made_of.encode()})

    @classmethod
    def read(cls, folder: Path) -> "LinkedConfig":
        """Read the configuration of a linked model.

        Raises:
            BundleError: It is not one.
        """
        try:
            return cls.model_validate_json(read_file(folder / CONFIG))
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise BundleError(f"{folder / CONFIG} is no linked model: {what}") from error

    def write(self, folder: Path) -> None:
        """Write the configuration.

        Raises:
            OutputError: The folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / CONFIG, (self.model_dump_json(indent=1) + "\n").encode())
        except OSError as error:
            raise OutputError(f"{folder} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True, eq=False)
class LinkedModel(CloudModel):
    """A LlamaGen model at work; its conditions come from classes or from caption features."""

    captions: Captions

    @torch.inference_mode()
    def condition_pair(self, words: Sequence[int]) -> Condition:
        """See `CloudModel.condition_pair`; `words` are what `captions.encode` returns."""
        model, device = self.engine.transformer, self.engine.device
        if isinstance(self.captions, ClassCaptions):
            pair = torch.tensor([words[0], self.captions.classes], device=device)
            return model.condition_classes(pair)
        assert isinstance(self.captions, FeatureCaptions)
        features, valid = self.captions.features(tuple(words))
        features = features.to(device, model.tok_embeddings.weight.dtype).expand(2, -1, -1)
        withheld = torch.tensor([False, True], device=device)
        return model.condition_features(features, valid.to(device).expand(2, -1), withheld)

    def told(self, condition: Condition) -> bytes:
        """See `CloudModel.told`."""
        return pack_condition(Start.of(condition).sent)


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file()) or [path]


def _size_and_time(path: Path) -> tuple[int, int]:
    stats = [each.stat() for each in _files(path)]
    return sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)


def is_linked(folder: Path) -> bool:
    """Whether a cloud model's folder points at files elsewhere."""
    try:
        found = json.loads(read_file(folder / CONFIG)).get("format")
    except (ValueError, AttributeError):
        return False
    return bool(found == LINKED_FORMAT)


def load_linked(folder: Path, device: str = "cpu") -> LinkedModel:
    """Read a linked model from its files.

    Raises:
        BundleError: The configuration is wrong, or a file is gone or not the one that was added.
        InvalidInputError: A file cannot be read.
    """
    config = LinkedConfig.read(folder)
    for stamp in (config.weights, config.tokenizer):
        stamp.check()
    transformer = load_llamagen(
        config.weights.path, config.grid, dtype=DTYPES[config.dtype], heads=config.heads
    )
    captions = captions_of(transformer.config, config.captions, folder / _CAPTION_CACHE)
    # No interval feature was trained for it: a fresh one adds exactly nothing.
    feature = IntervalFeature(transformer.config.dim).to(device).eval()
    engine = SpanEngine(transformer.to(device))
    return LinkedModel(config.family, config.version, engine, feature, captions)


def linked_tokenizer(folder: Path) -> ImageTokenizer:
    """Read the image tokenizer of a linked model.

    Raises:
        BundleError: The configuration is wrong, or the file is gone or not the one that was added.
        InvalidInputError: The file cannot be read.
    """
    stamp = LinkedConfig.read(folder).tokenizer
    stamp.check()
    return load_vq(stamp.path, unit_codes=True)


def captions_of(config: TransformerConfig, source: CaptionSource | None, cache: Path) -> Captions:
    """Return what reads captions for a model.

    Raises:
        InvalidInputError: The source is missing, cannot be read, or is not the model's.
    """
    if config.n_class:
        return ClassCaptions(config.n_class)
    if source is None:
        raise InvalidInputError(
            "the model reads captions as T5 features: name a folder with a T5 or a file of features"
        )
    features: FeatureSource
    if source.kind == "file":
        features = FeatureFile(source.path)
    else:
        features = FeatureCache(T5Encoder(source.path, config.caption_length), cache)
    return FeatureCaptions(features, config.caption_length, config.caption_dim)
