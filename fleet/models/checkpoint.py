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

# How many names a difference lists of each kind.
_NAMED = 4


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


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights strictly, by copying them into the module.

    Raises:
        FleetError: The weights are not the module's; see `difference`.
    """
    check_weights(module, weights)
    module.load_state_dict(dict(weights))


def check_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Hold names and shapes of weights against those of a module.

    Raises:
        FleetError: They differ; the sentence says how.
    """
    found = difference(_shapes(module.state_dict()), _shapes(weights))
    if found:
        raise FleetError(f"the weights do not fit: {found}")


def difference(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> str:
    """Say which weights are missing, foreign or of another shape; empty if none is."""
    both = sorted(expected.keys() & found.keys())
    kinds = {
        "missing": sorted(expected.keys() - found.keys()),
        "foreign": sorted(found.keys() - expected.keys()),
        "of another shape": [
            f"{name} is {_show(found[name])}, not {_show(expected[name])}"
            for name in both
            if expected[name] != found[name]
        ],
    }
    return "; ".join(
        f"{len(names)} {kind} ({_few(names)})" for kind, names in kinds.items() if names
    )


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}


def _show(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"


def _few(names: list[str]) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join(names[:_NAMED] + more)


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
