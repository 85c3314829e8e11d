"""Chameleon and Anole: text and image tokens in one vocabulary, of which a picture uses a part.

The loaded model knows only the image's codes: its table of tokens and its output layer are the
rows of the image tokens, so no other token can be drawn and no mask is needed. Text tokens have
a table of their own for the prompt.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.formats.assemble import assemble, layer_count, matrix_shape
from fleet.models.formats.files import Weights, read_weights
from fleet.models.formats.names import (
    fuse_qkv,
    interleaved,
    is_transformers_layout,
    native_names,
)
from fleet.models.prompts import pad_prompts
from fleet.models.transformer import Transformer, TransformerConfig

KIND = "Chameleon"
GRID = 32

_IMAGE_NAME = "IMGIMG"
_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")
_TOKENIZER = "model.vqmodel."
# Beyond it norms stand after attention and feed-forward: the 30B.
_LARGEST_DIM = 4096


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of the tokens that a prompt and a picture are made of; the released ones."""

    images: Sequence[int] = range(4, 8196)  # of code 0, 1, …
    begin: int = 0
    padding: int = 1
    end_of_turn: int = 8710
    begin_image: int = 8197

    @classmethod
    def read(cls, tokenizer: Path) -> "Vocabulary":
        """Take the image tokens from the text tokenizer's JSON file.

        Raises:
            InvalidInputError: It has none, or they are not in the order of their codes.
        """
        try:
            words = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
        except (OSError, ValueError, KeyError) as error:
            raise InvalidInputError(f"{tokenizer} is not a text tokenizer's JSON file") from error
        codes = {
            _code(name): token for name, token in words.items() if name.startswith(_IMAGE_NAME)
        }
        images = [codes.get(code, -1) for code in range(len(codes))]
        if not images or images != sorted(images) or images[0] < 0:
            raise InvalidInputError(
                f"{tokenizer} does not name its {len(images)} image tokens in the order of codes"
            )
        return cls(images)

    def prompt(self, text: Sequence[int]) -> list[int]:
        """Return a prompt's tokens for text ids that carry no special tokens."""
        return [self.begin, *text, self.end_of_turn, self.begin_image]

    @property
    def no_prompt(self) -> list[int]:
        """The tokens of the unconditional branch of guidance."""
        return [self.begin, self.begin_image]

    def text(self, caption: str) -> str:
        """Return the text of a prompt: the caption."""
        return caption

    def without(self, prompt: Sequence[int]) -> list[int]:  # noqa: ARG002 - the same for all
        """Return the unconditional branch of any prompt."""
        return self.no_prompt

    def is_text(self, token: int) -> bool:
        """Whether a caption may hold a token."""
        special = (self.begin, self.padding, self.end_of_turn, self.begin_image)
        return token not in special and token not in self.images

    def pad(self, prompts: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
        """Pad prompts on the left; see `pad_prompts`."""
        return pad_prompts(prompts, length, self.padding)


def load_chameleon(
    path: Path,
    vocabulary: Vocabulary,
    *,
    prompt_length: int,
    grid: int = GRID,
    dtype: torch.dtype = torch.bfloat16,
) -> Transformer:
    """Read a token model of the native layout or of transformers'.

    Args:
        path: `consolidated.pth`, or a folder of safetensors.
        vocabulary: The ids of its tokens.
        prompt_length: Positions for a prompt; the cache of a picture has room for all.
        grid: Tokens of one side of a picture.
        dtype: Of the weights; rotary tables stay fp32.

    Raises:
        InvalidInputError: The files cannot be read, or do not hold such a model.
    """
    weights = read_weights(path)
    weights = {n: value for n, value in weights.items() if not n.startswith(_TOKENIZER)}
    is_foreign = is_transformers_layout(weights)
    weights = native_names(weights) if is_foreign else weights
    words, dim = matrix_shape(path, KIND, weights, "tok_embeddings.weight")
    if words <= max(vocabulary.images):
        raise InvalidInputError(
            f"{path} has {words} tokens, but the image's go up to {max(vocabulary.images)}"
        )
    ffn, _ = matrix_shape(path, KIND, weights, "layers.0.feed_forward.w1.weight")
    if (norm := weights.get("layers.0.attention.q_normalization.weight")) is None:
        raise InvalidInputError(f"{path} is no {KIND} model: it does not normalise its queries")
    if dim > _LARGEST_DIM:
        raise InvalidInputError(f"{path} is of width {dim}; the 30B has layers of another kind")
    heads = dim // norm.shape[-1]
    weights = fuse_qkv(interleaved(weights, heads) if is_foreign else weights)
    weights = _image_rows(_heads_of_norms(weights, heads), vocabulary.images)
    config = TransformerConfig(
        n_layer=layer_count(weights),
        n_head=heads,
        dim=dim,
        ffn=ffn,
        vocab_size=len(vocabulary.images),
        grid=grid,
        n_word=words,
        caption_length=prompt_length,
        has_prompt=True,
        qk_norm=True,
    )
    return assemble(path, KIND, config, weights, dtype)


def _code(name: str) -> int:
    digits = name.removeprefix(_IMAGE_NAME).removesuffix("Z").translate(_DIGITS)
    return int(digits) if digits.isdecimal() else -1


def _heads_of_norms(weights: Weights, heads: int) -> Weights:
    """Give every head its own normalisation; the native layout has one vector for all."""
    return {
        name: value.expand(heads, -1) if "_normalization." in name else value
        for name, value in weights.items()
    }


def _image_rows(weights: Weights, images: Sequence[int]) -> Weights:
    embeddings, output = weights["tok_embeddings.weight"], weights["output.weight"]
    return weights | {
        "cls_embedding.text_embeddings.weight": embeddings,
        "tok_embeddings.weight": _rows(embeddings, images),
        "output.weight": _rows(output, images),
    }


def _rows(table: Tensor, ids: Sequence[int]) -> Tensor:
    first, last = ids[0], ids[-1]
    if last - first + 1 == len(ids):  # a view, no copy
        return table[first : last + 1]
    return table[list(ids)]
