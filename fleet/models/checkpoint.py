"""Checkpoints on disk: written atomically, read without running foreign code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fleet.errors import FleetError, InvalidInputError
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.interval_head import IntervalHead
from fleet.models.transformer import Transformer, TransformerConfig

# Buffers that some releases carry and that are computed here, or only served training.
_DERIVED = ("freqs_cis", "causal_mask", "quantize.codebook_used")
_WRAPPERS = ("model", "module", "state_dict")
_PREFIXES = ("module.", "_orig_mod.")


def save_checkpoint(path: Path, payload: Mapping[str, Any]) -> None:
    """Write the payload beside its place and move it there, so a reader never sees half of it."""
    partial = path.with_name(path.name + ".partial")
    torch.save(dict(payload), partial)
    partial.replace(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a payload of tensors and plain values."""
    if not path.exists():
        raise InvalidInputError(f"there is no checkpoint at {path}")
    try:
        loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler met
        raise InvalidInputError(f"{path} is not a checkpoint that can be read: {error}") from error
    return loaded


def unwrap_weights(loaded: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the bare weights of any container LlamaGen is released in."""
    if "tok_embeddings.weight" not in loaded:
        for wrapper in _WRAPPERS:
            if isinstance(loaded.get(wrapper), Mapping):
                loaded = loaded[wrapper]
                break
    weights = {_strip(name): value for name, value in loaded.items()}
    return {name: value for name, value in weights.items() if not _is_derived(name)}


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights strictly; the error lists what is missing, foreign or of another shape."""
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    problems = [f"missing {name}" for name in expected.keys() - found.keys()]
    problems += [f"foreign {name}" for name in found.keys() - expected.keys()]
    problems += [
        f"{name} is {found[name]}, not {expected[name]}"
        for name in expected.keys() & found.keys()
        if expected[name] != found[name]
    ]
    if problems:
        raise FleetError("the weights do not fit: " + "; ".join(sorted(problems)[:8]))
    module.load_state_dict(dict(weights))


def save_tokenizer(path: Path, tokenizer: ImageTokenizer, **progress: Any) -> None:
    """Write a tokenizer with its configuration."""
    config = asdict(tokenizer.config)
    save_checkpoint(path, {"config": config, "model": tokenizer.state_dict(), **progress})


def load_tokenizer(path: Path) -> ImageTokenizer:
    """Read a tokenizer, ready to encode and decode."""
    loaded = load_checkpoint(path)
    config = dict(loaded["config"])
    config["channel_multipliers"] = tuple(config["channel_multipliers"])
    tokenizer = ImageTokenizer(ImageTokenizerConfig(**config))
    load_weights(tokenizer, loaded["model"])
    return tokenizer.eval()


def load_transformer(path: Path) -> Transformer:
    """Read a token model with its configuration; other weights in the file are left alone."""
    loaded = load_checkpoint(path)
    model = Transformer(TransformerConfig(**loaded["config"]))
    load_weights(model, loaded["model"])
    return model.eval()


@dataclass(frozen=True)
class DeviceParts:
    """A device model as loaded: its transformer, and the interval head on its output layer."""

    transformer: Transformer
    head: IntervalHead


def load_device(path: Path) -> DeviceParts:
    """Read a device model; the head's center is the transformer's output layer."""
    loaded = load_checkpoint(path)
    transformer = Transformer(TransformerConfig(**loaded["config"]))
    load_weights(transformer, loaded["model"])
    head = IntervalHead(transformer.output, loaded["rank"])
    load_weights(head, loaded["head"])
    return DeviceParts(transformer.eval(), head.eval())


def _strip(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _is_derived(name: str) -> bool:
    return name in _DERIVED or ".kv_cache." in name
