"""Captions as FLAN-T5 features, for models that read those: computed once a caption, then kept.

A caption is known by its hash. Features come from a T5 encoder in a local folder, or from a
file that somebody with a T5 made; nothing is fetched.
"""

import html
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fleet.errors import InvalidInputError, OutputError

# Beyond what any hub keeps waiting, so that features outlive the request that asked for them.
_KEPT = 2048

_LINK = re.compile(r"https?://\S+|www\.\S+")
_MARKUP = re.compile(r"<[^<>]*>")
_SPACE = re.compile(r"\s+")


class FeatureSource(Protocol):
    """Where the features of captions come from."""

    def encode(self, caption: str) -> Tensor:
        """Return the features [n, width] of a caption, one row a token.

        Raises:
            InvalidInputError: It has no features here.
        """
        ...


class T5Encoder:
    """The encoder of a T5 in a local folder, such as FLAN-T5-XL."""

    def __init__(self, folder: Path, length: int, dtype: torch.dtype = torch.bfloat16) -> None:
        """Read tokenizer and encoder; captions are cut at `length` tokens, the end included.

        Raises:
            InvalidInputError: The folder holds no T5, or transformers is not installed.
        """
        if not folder.is_dir():
            raise InvalidInputError(f"there is no T5 in {folder}: it is no folder")
        try:
            from transformers import AutoTokenizer, T5EncoderModel
            from transformers.utils.logging import disable_progress_bar
        except ImportError as error:
            raise InvalidInputError(
                "captions need transformers: pip install 'ciar-fleet[text]', or use a file of"
                " caption features"
            ) from error
        self._length = length
        disable_progress_bar()
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = T5EncoderModel.from_pretrained(folder, local_files_only=True, dtype=dtype)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise InvalidInputError(f"there is no T5 in {folder}: {reason}") from error
        self._model = model.eval()

    @torch.inference_mode()
    def encode(self, caption: str) -> Tensor:
        """See `FeatureSource.encode`."""
        text = clean_caption(caption)
        if not text:
            raise InvalidInputError("the caption has no words")
        ids = self._tokenizer(text, max_length=self._length, truncation=True)["input_ids"]
        features: Tensor = self._model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        return features


class FeatureFile:
    """Features by the hashes of their captions, in one safetensors file."""

    def __init__(self, path: Path) -> None:
        """Open the file; features are read as they are asked for.

        Raises:
            InvalidInputError: It is no such file.
        """
        try:
            opened: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise InvalidInputError(f"{path} is no file of caption features: {error}") from error
        self._file, self._path = opened, path
        self._known = frozenset(opened.keys())

    def encode(self, caption: str) -> Tensor:
        """See `FeatureSource.encode`."""
        name = caption_hash(caption)
        if name not in self._known:
            raise InvalidInputError(
                f"{self._path.name} holds the features of {len(self._known)} captions, but not of"
                " this one: add it with `cloud_hub models captions`"
            )
        features: Tensor = self._file.get_tensor(name)
        return features


class FeatureCache:
    """Features kept in a folder, one file a caption, so that no caption is computed twice."""

    def __init__(self, source: FeatureSource, folder: Path) -> None:
        self._source = source
        self._folder = folder

    def encode(self, caption: str) -> Tensor:
        """See `FeatureSource.encode`."""
        path = self._folder / f"{caption_hash(caption)}.safetensors"
        try:
            return load_file(path)["features"]
        except (OSError, SafetensorError, KeyError):
            features = self._source.encode(caption)
        save_features(path, {"features": features})
        return features


class FeatureCaptions:
    """Captions of a served model: a caption's key for a request, its padded features by the key."""

    def __init__(self, source: FeatureSource, length: int, width: int) -> None:
        self._source = source
        self._length = length
        self._width = width
        self._kept: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()

    def encode(self, caption: str) -> tuple[int, ...]:
        """Return the caption's key, its features made ready; may take seconds.

        Raises:
            InvalidInputError: It has no features here, or features of another model.
        """
        key = tuple(bytes.fromhex(caption_hash(caption)))
        features = self._kept.get(key)
        if features is None:
            features = self._source.encode(caption)
        rows, width = features.shape
        if width != self._width or not 0 < rows <= self._length:
            raise InvalidInputError(
                f"the caption's features are {rows} of width {width}; this model reads up to"
                f" {self._length} of width {self._width}"
            )
        self._kept[key] = features
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return key

    def features(self, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the features [C, width] of a key that `encode` gave, and what is valid [C]."""
        return left_pad(self._kept[key], self._length)


def caption_hash(caption: str) -> str:
    """Return the SHA-256 of the cleaned caption, in hexadecimal digits."""
    return sha256(clean_caption(caption).encode()).hexdigest()


def clean_caption(caption: str) -> str:
    """Return the caption in lower case, without links, markup and needless space."""
    text = html.unescape(html.unescape(unicodedata.normalize("NFKC", caption)))
    text = _MARKUP.sub(" ", _LINK.sub(" ", text.lower()))
    return _SPACE.sub(" ", text).strip()


def left_pad(features: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Move features [n, width] to the end of `length` rows of zeros; also say which are valid."""
    count, width = features.shape
    padded = features.new_zeros(length, width)
    padded[length - count :] = features
    return padded, torch.arange(length) >= length - count


def save_features(path: Path, features: dict[str, Tensor]) -> None:
    """Write features by caption hash; a reader never sees half of a file.

    Raises:
        OutputError: The file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in features.items()}, partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"{path} cannot be written: {error}") from error


def write_feature_file(path: Path, captions: Iterable[str], source: FeatureSource) -> int:
    """Add the features of captions to a file, made if it is missing; return how many it holds."""
    features: dict[str, Tensor] = load_file(path) if path.exists() else {}
    for caption in captions:
        name = caption_hash(caption)
        if name not in features:
            features[name] = source.encode(caption)
    save_features(path, features)
    return len(features)
