"""LlamaGen's token models from the files they are released in.

Sizes and condition follow from the shapes. Two things do not: the number of heads, which the
table below gives, and the grid, since rotary tables are not in the file. With a wrong grid the
weights load and the pictures are garbage, so it is never guessed.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fleet.errors import InvalidInputError
from fleet.models.formats.assemble import assemble, layer_count, matrix_shape
from fleet.models.formats.files import Weights, read_weights
from fleet.models.formats.names import fuse_qkv, is_transformers_layout, native_names
from fleet.models.transformer import Transformer, TransformerConfig


@dataclass(frozen=True, slots=True)
class Size:
    """A released size: what its files' shapes must be, and the heads that they do not show."""

    name: str
    dim: int
    layers: int
    heads: int


SIZES = (
    Size("B", 768, 12, 12),
    Size("L", 1024, 24, 16),
    Size("XL", 1280, 36, 20),
    Size("XXL", 1536, 48, 24),
    Size("XXXL", 2560, 48, 40),
    Size("1B", 2048, 22, 32),
    Size("3B", 3200, 24, 32),
    Size("7B", 4096, 32, 32),
)
KIND = "LlamaGen"

_PICTURE_SIZE = re.compile(r"(?<!\d)(256|384|512)(?!\d)")


def load_llamagen(
    path: Path, grid: int, *, dtype: torch.dtype = torch.float32, heads: int | None = None
) -> Transformer:
    """Read a token model of any container and of LlamaGen's or LANTERN's names.

    Args:
        path: A file, or a folder of LANTERN's layout.
        grid: Tokens of one side of the picture; see `grid_of`.
        dtype: Of the weights; rotary tables stay fp32. fp32 weights stay mapped from the file.
        heads: Only for a size that the table does not have.

    Raises:
        InvalidInputError: The file cannot be read, or does not hold such a model.
    """
    weights = read_weights(path)
    if is_transformers_layout(weights):
        weights = fuse_qkv(native_names(weights))
    config = llamagen_config(path, weights, grid, heads)
    return assemble(path, KIND, config, weights, dtype)


def llamagen_config(
    path: Path, weights: Weights, grid: int, heads: int | None = None
) -> TransformerConfig:
    """Return the sizes that weights of LlamaGen's names have.

    Raises:
        InvalidInputError: The weights lack what tells, or have no size that is known.
    """
    vocab_size, dim = matrix_shape(path, KIND, weights, "tok_embeddings.weight")
    n_layer = layer_count(weights)
    ffn, _ = matrix_shape(path, KIND, weights, "layers.0.feed_forward.w1.weight")
    heads = heads or _heads(path, dim, n_layer)
    if dim % heads or dim // heads % 4:
        raise InvalidInputError(f"{heads} heads do not divide the width {dim} into fours")
    sizes: dict[str, Any] = {
        "n_layer": n_layer,
        "n_head": heads,
        "dim": dim,
        "ffn": ffn,
        "grid": grid,
    }
    if "cls_embedding.embedding_table.weight" in weights:
        classes, _ = matrix_shape(path, KIND, weights, "cls_embedding.embedding_table.weight")
        # A class is a prefix of one position; the table's last row is no class.
        sizes |= {"caption_length": 1, "n_class": classes - 1}
    else:
        length, width = matrix_shape(path, KIND, weights, "cls_embedding.uncond_embedding")
        sizes |= {"caption_length": length, "caption_dim": width}
    return TransformerConfig(vocab_size=vocab_size, n_word=0, **sizes)


def size_name(config: TransformerConfig) -> str:
    """Return the released size of a model, such as XL; empty if it is none."""
    found = [s.name for s in SIZES if (s.dim, s.layers) == (config.dim, config.n_layer)]
    return found[0] if found else ""


def grid_of(path: Path, downsampling: int, grid: int | None) -> int:
    """Return the tokens of one side of a model's pictures, from its file's name or as given.

    Args:
        path: The model's file or folder; released names hold the picture's size in pixels.
        downsampling: Pixels of one side of a token, of the image tokenizer that goes with it.
        grid: What a person says; None: what the name says.

    Raises:
        InvalidInputError: Nobody says, or the two contradict each other.
    """
    found = {int(size) for size in _PICTURE_SIZE.findall(path.stem)}
    named = found.pop() // downsampling if len(found) == 1 else None
    if grid is None and named is None:
        raise InvalidInputError(
            f"the name {path.name} does not say for which pictures the model was trained (256,"
            " 384 or 512 pixels), and its weights do not show it: give the grid, such as 16 for"
            " pictures of 256 pixels and tokens of 16"
        )
    if grid is not None and named is not None and grid != named:
        raise InvalidInputError(
            f"the name {path.name} means a grid of {named}, not {grid}: with another grid than"
            " its own a model draws garbage. Rename the file if its name is wrong"
        )
    return grid or named or 0


def _heads(path: Path, dim: int, n_layer: int) -> int:
    for size in SIZES:
        if (size.dim, size.layers) == (dim, n_layer):
            return size.heads
    known = ", ".join(f"{size.name} {size.layers}x{size.dim}" for size in SIZES)
    raise InvalidInputError(
        f"{path} has {n_layer} layers of width {dim}, which is no released LlamaGen size"
        f" ({known}): give the number of heads"
    )
