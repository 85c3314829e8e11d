"""Weights in files of any container, read without running foreign code and without a copy."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fleet.errors import InvalidInputError

Weights = dict[str, Tensor]

# Buffers that some releases carry and that are computed here, or only served training.
_DERIVED = ("freqs_cis", "rope.freqs", "causal_mask", "quantize.codebook_used")
_WRAPPERS = ("model", "module", "state_dict")
_PREFIXES = ("module.", "_orig_mod.")

# A pointer that Git leaves where a large file was not fetched.
_GIT_LFS = b"version https://git-lfs"
# What the readers say of a file whose end is missing.
_CUT_SHORT = ("central directory", "incomplete metadata", "header too large", "unexpected EOF")
_ARCHIVE = b"PK\x03\x04"
_SHARDS = ("*.safetensors", "consolidated*.pth", "*.bin")


def read_weights(path: Path) -> Weights:
    """Return the bare weights of a file, or of all files of a folder that holds one model.

    Files are safetensors, or what torch saves: the weights themselves (FSDP), or wrapped as
    "model", "module" or "state_dict", with or without a training run's leftovers. Tensors are
    mapped into memory, not read: they take memory as they are used.

    Raises:
        InvalidInputError: There is no such file, it is cut short, or it is not weights.
    """
    if not path.exists():
        raise InvalidInputError(f"there are no weights at {path}")
    if path.is_dir():
        return _read_folder(path)
    _check_content(path)
    if path.suffix == ".safetensors":
        return _clean(path, _read_safetensors(path))
    return _clean(path, unwrap_weights(_read_torch(path)))


def unwrap_weights(loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bare weights of any container, by names without the prefixes of wrappers."""
    for wrapper in _WRAPPERS:
        # The weights of some networks begin with these names too, but hold tensors there.
        if isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
            break
    weights = {_strip(name): value for name, value in loaded.items()}
    return {name: value for name, value in weights.items() if not _is_derived(name)}


def _read_folder(path: Path) -> Weights:
    for pattern in _SHARDS:
        if shards := sorted(path.glob(pattern)):
            parts = [read_weights(shard) for shard in shards]
            weights = {name: value for part in parts for name, value in part.items()}
            if len(weights) < sum(map(len, parts)):
                raise InvalidInputError(f"{path} holds several models: name one of its files")
            return weights
    raise InvalidInputError(f"the folder {path} holds no weights ({', '.join(_SHARDS)})")


def _check_content(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(len(_GIT_LFS))
    if not head:
        raise InvalidInputError(f"{path} is empty: fetch it again")
    if head == _GIT_LFS:
        raise InvalidInputError(
            f"{path} is a Git LFS pointer, not the weights: fetch the file itself (git lfs pull)"
        )
    if head.lstrip()[:1] == b"<":
        raise InvalidInputError(f"{path} is a web page, not weights: fetch the file itself")


def _read_safetensors(path: Path) -> Weights:
    try:
        weights: Weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InvalidInputError(_unreadable(path, error)) from error
    return weights


def _read_torch(path: Path) -> Mapping[str, Any]:
    # A training run's file carries its arguments, which are plain values in a namespace.
    with torch.serialization.safe_globals([argparse.Namespace]):
        try:
            loaded = _load(path)
        except Exception as error:  # torch raises whatever its unpickler met
            raise InvalidInputError(_unreadable(path, error)) from error
    if not isinstance(loaded, Mapping):
        raise InvalidInputError(f"{path} holds a {type(loaded).__name__}, not named weights")
    return loaded


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        # Only the archives that torch writes since 1.6 can be mapped.
        is_archive = file.read(len(_ARCHIVE)) == _ARCHIVE
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)


def _unreadable(path: Path, error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    size = path.stat().st_size
    cut = any(sign in reason for sign in _CUT_SHORT) or isinstance(error, EOFError)
    if cut or _is_cut_archive(path):
        return f"{path} is cut short at {size:,} bytes: fetch it again"
    return f"{path} ({size:,} bytes) cannot be read as weights: {reason}"


def _is_cut_archive(path: Path) -> bool:
    """Whether a file begins as an archive and has no archive's end."""
    with path.open("rb") as file:
        begins = file.read(len(_ARCHIVE)) == _ARCHIVE
    return begins and not is_zipfile(path)


def _clean(path: Path, weights: Mapping[str, Any]) -> Weights:
    others = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if others or not weights:
        named = f" but {', '.join(sorted(others)[:5])}" if others else ""
        raise InvalidInputError(f"{path} holds no plain set of weights{named}")
    return {name: value.detach() for name, value in weights.items()}


def _strip(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _is_derived(name: str) -> bool:
    return name in _DERIVED or ".kv_cache." in name
