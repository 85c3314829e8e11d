"""Janus-Pro: a Llama whose image tokens have tables of their own; 1B and 7B share codes and words.

Image tokens enter through two layers on the codebook's embeddings, which are one table once they
are computed; they leave through a hidden layer and an output with a bias.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.formats.assemble import assemble, layer_count, matrix_shape
from fleet.models.formats.files import Weights, read_weights
from fleet.models.formats.names import fuse_qkv, interleaved, native_names
from fleet.models.prompts import pad_prompts
from fleet.models.transformer import Transformer, TransformerConfig

KIND = "Janus"
GRID = 24
NORM_EPS = 1e-6
HEADS = {(2048, 24): 16, (4096, 30): 32}  # of width and layers: 1B, 7B

# transformers' names, and those of the release, for the parts around the language model.
_PARTS = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "model.generation_embeddings.": "codes.",
    "gen_embed.": "codes.",
    "model.generation_aligner.fc1.": "aligner.0.",
    "gen_aligner.layers.0.": "aligner.0.",
    "model.generation_aligner.hidden_layers.0.": "aligner.1.",
    "gen_aligner.layers.2.": "aligner.1.",
    "model.generation_head.proj_out.": "norm.hidden.",
    "gen_head.output_mlp_projector.": "norm.hidden.",
    "model.generation_head.vision_head.": "output.",
    "gen_head.vision_head.": "output.",
}
_ALIGNER_PARTS = (
    "codes.weight",
    *(f"aligner.{layer}.{part}" for layer in (0, 1) for part in ("weight", "bias")),
)


@dataclass(frozen=True, slots=True)
class JanusVocabulary:
    """The special tokens of a prompt."""

    begin: int
    padding: int
    begin_image: int

    @classmethod
    def read(cls, tokenizer: Path) -> "JanusVocabulary":
        """Take them from the text tokenizer's JSON file.

        Raises:
            InvalidInputError: It does not have all of them.
        """
        names = ("<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>")
        try:
            found = json.loads(tokenizer.read_text(encoding="utf-8"))
            known = {each["content"]: each["id"] for each in found["added_tokens"]}
            return cls(*(known[name] for name in names))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(
                f"{tokenizer} is not Janus-Pro's text tokenizer: it lacks {error}"
            ) from error

    def text(self, caption: str) -> str:
        """Return a caption as a user's turn, to which the assistant is to answer."""
        return f"<|User|>: {caption}\n\n<|Assistant|>:"

    def prompt(self, text: Sequence[int]) -> list[int]:
        """Return a prompt's tokens for text ids that carry no special tokens."""
        return [self.begin, *text, self.begin_image]

    def without(self, prompt: Sequence[int]) -> list[int]:
        """Return a prompt of the same length whose text is padding, which is seen."""
        return [self.begin, *[self.padding] * (len(prompt) - 2), self.begin_image]

    def is_text(self, token: int) -> bool:
        """Whether a caption may hold a token."""
        return token not in (self.begin, self.padding, self.begin_image)

    def pad(self, prompts: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
        """Pad prompts on the left; see `pad_prompts`."""
        return pad_prompts(prompts, length, self.padding)


def load_janus(
    path: Path,
    *,
    prompt_length: int,
    grid: int = GRID,
    heads: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Transformer:
    """Read the token model of Janus-Pro, from its release or from transformers' layout.

    Args:
        path: A file, or a folder of shards.
        prompt_length: Positions for a prompt; the cache of a picture has room for all.
        grid: Tokens of one side of a picture.
        heads: Only for a size that was not released.
        dtype: Of the weights; rotary tables stay fp32.

    Raises:
        InvalidInputError: The files cannot be read, or do not hold such a model.
    """
    weights = {_own_name(name): value for name, value in read_weights(path).items()}
    lacking = [name for name in (*_ALIGNER_PARTS, "output.weight") if name not in weights]
    if lacking:
        raise InvalidInputError(f"{path} is no {KIND} model: it has no {', '.join(lacking)}")
    kept = ("model.", "norm.", "output.")
    table = _table(weights)
    weights = native_names({n: w for n, w in weights.items() if n.startswith(kept)})
    words, dim = matrix_shape(path, KIND, weights, "tok_embeddings.weight")
    layers = layer_count(weights)
    heads = heads or HEADS.get((dim, layers))
    if heads is None or dim % heads:
        raise InvalidInputError(
            f"{path} has {layers} layers of width {dim}, which is no released Janus-Pro (1B"
            " 24x2048, 7B 30x4096): give the number of heads"
        )
    weights = fuse_qkv(interleaved(weights, heads))
    weights["cls_embedding.text_embeddings.weight"] = weights["tok_embeddings.weight"]
    weights["tok_embeddings.weight"] = table
    weights["norm.norm.weight"] = weights.pop("norm.weight")
    ffn, _ = matrix_shape(path, KIND, weights, "layers.0.feed_forward.w1.weight")
    hidden, _ = matrix_shape(path, KIND, weights, "norm.hidden.weight")
    config = TransformerConfig(
        n_layer=layers,
        n_head=heads,
        dim=dim,
        ffn=ffn,
        vocab_size=len(table),
        grid=grid,
        n_word=words,
        caption_length=prompt_length,
        has_prompt=True,
        norm_eps=NORM_EPS,
        head_hidden=hidden,
    )
    return assemble(path, KIND, config, weights, dtype)


def _own_name(name: str) -> str:
    for old, new in _PARTS.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return f"other.{name}"  # what sees pictures, and the head for text


def _table(weights: Weights) -> Tensor:
    """Return the input [V, D] of each code, computed in fp32."""
    codes, first, first_bias, second, second_bias = (
        weights[name].float() for name in _ALIGNER_PARTS
    )
    return F.linear(F.gelu(F.linear(codes, first, first_bias)), second, second_bias)
