"""Tiny LlamaGen models in the released layout, with weights that any machine makes alike."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "llamagen.json").read_text())
CLASSES, CAPTIONS = GOLDEN["c2i"], GOLDEN["t2i"]
HEADS = 4
GRID = 4


def class_weights() -> dict[str, Tensor]:
    """Return the weights of the golden class-conditional model."""
    return _fill(_shapes(CLASSES["args"]))


def caption_weights() -> dict[str, Tensor]:
    """Return the weights of the golden text-conditional model."""
    return _fill(_shapes(CAPTIONS["args"]))


def caption_features() -> tuple[Tensor, Tensor]:
    """Return the golden captions: features [2, 120, 24], left-padded, and which are valid."""
    drawn = np.random.RandomState(11).standard_normal((2, 120, 24))
    features, valid = np.zeros_like(drawn), np.zeros((2, 120), bool)
    for row, count in enumerate(CAPTIONS["valid_lens"]):
        features[row, -count:] = drawn[row, :count]
        valid[row, -count:] = True
    return torch.from_numpy(features).float(), torch.from_numpy(valid)


def golden(case: dict[str, Any], name: str) -> Tensor:
    """Return golden logits [2, 16, 97]."""
    return torch.tensor(case[name]).view(case["shape"])


def draw(name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return normal numbers that depend on the name only."""
    seed = (1234 + zlib.crc32(name.encode())) % 2**32
    drawn: NDArray[np.float64] = np.random.RandomState(seed).standard_normal(shape)
    return drawn


def _fill(shapes: Shapes) -> dict[str, Tensor]:
    return {name: torch.from_numpy(_scaled(name, shapes[name])).float() for name in sorted(shapes)}


def _scaled(name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    drawn = draw(name, shape)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * drawn
    if name == "output.weight":
        return 0.3 * drawn
    if name in ("tok_embeddings.weight", "cls_embedding.embedding_table.weight"):
        return 0.5 * drawn
    scaled: NDArray[np.float64] = drawn / np.sqrt(shape[-1])
    return scaled


def _shapes(args: dict[str, Any]) -> Shapes:
    dim, step = args["dim"], args["multiple_of"]
    ffn = -(-int(2 * 4 * dim / 3) // step) * step
    shapes: Shapes = {
        "tok_embeddings.weight": (args["vocab_size"], dim),
        "norm.weight": (dim,),
        "output.weight": (args["vocab_size"], dim),
    }
    for layer in range(args["n_layer"]):
        at = f"layers.{layer}."
        shapes[at + "attention.wqkv.weight"] = (3 * dim, dim)
        shapes[at + "attention.wo.weight"] = (dim, dim)
        shapes[at + "feed_forward.w1.weight"] = (ffn, dim)
        shapes[at + "feed_forward.w3.weight"] = (ffn, dim)
        shapes[at + "feed_forward.w2.weight"] = (dim, ffn)
        shapes[at + "attention_norm.weight"] = (dim,)
        shapes[at + "ffn_norm.weight"] = (dim,)
    if args["model_type"] == "c2i":
        return shapes | {"cls_embedding.embedding_table.weight": (args["num_classes"] + 1, dim)}
    width = args["caption_dim"]
    return shapes | {
        "cls_embedding.uncond_embedding": (args["cls_token_num"], width),
        "cls_embedding.cap_proj.fc1.weight": (dim, width),
        "cls_embedding.cap_proj.fc2.weight": (dim, dim),
    }
