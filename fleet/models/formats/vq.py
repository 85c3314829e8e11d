"""Image tokenizers from the files they are released in: LlamaGen's, Chameleon's and Janus-Pro's.

All are the same network under different names. Sizes follow from the shapes.
"""

import re
from pathlib import Path

import torch

from fleet.errors import FleetError, InvalidInputError
from fleet.models.checkpoint import check_weights
from fleet.models.formats.files import Weights, read_weights
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig

NORM_GROUPS = 32

_PARTS = ("encoder.", "decoder.", "quantize.", "quant_conv.", "post_quant_conv.")
# Where a whole model's file keeps the tokenizer.
_PREFIXES = ("model.vqmodel.", "gen_vision_model.", "vqmodel.")

_LEVEL = re.compile(r"(encoder|decoder)\.(?:down|up)\.(\d+)\.(block|attn|downsample|upsample)(.*)")
_MIDDLE = re.compile(r"(encoder|decoder)\.mid\.(block_1|attn_1|block_2)(.*)")
_MIDDLE_INDEX = {"block_1": "0", "attn_1": "1", "block_2": "2"}


def load_vq(path: Path, *, unit_codes: bool) -> ImageTokenizer:
    """Read an image tokenizer, alone in its file or inside a whole model's.

    Args:
        path: A file or folder; names are LlamaGen's, taming's (Chameleon) or transformers'.
        unit_codes: Whether codes are normalised at the lookup, which the file does not say: they
            are in LlamaGen and Janus-Pro, they are not in Chameleon.

    Raises:
        InvalidInputError: The file cannot be read, or holds no such tokenizer.
    """
    return build_vq(path, read_weights(path), unit_codes=unit_codes)


def build_vq(path: Path, weights: Weights, *, unit_codes: bool) -> ImageTokenizer:
    """Do what `load_vq` does, from the weights that `path` holds."""
    weights = vq_names(weights)
    try:
        config = _config(weights, unit_codes=unit_codes)
        with torch.device("meta"):
            tokenizer = ImageTokenizer(config)
        check_weights(tokenizer, weights)
    except KeyError as error:
        raise InvalidInputError(
            f"{path} holds no image tokenizer: it has no {error.args[0]}"
        ) from error
    except FleetError as error:
        raise InvalidInputError(f"{path} is no image tokenizer: {error}") from error
    # Pictures show what half precision loses; released tokenizers are fp32.
    tokenizer.load_state_dict({name: w.float() for name, w in weights.items()}, assign=True)
    return tokenizer.eval().requires_grad_(False)


def vq_names(weights: Weights) -> Weights:
    """Return the tokenizer's weights under LlamaGen's names; losses and other parts are left out.

    taming counts the decoder's levels from the highest resolution, the others from the lowest.
    """
    own = {_bare(name): value for name, value in weights.items()}
    own = {name: value for name, value in own.items() if name.startswith(_PARTS)}
    levels = [int(m[2]) for m in map(_LEVEL.fullmatch, own) if m and m[1] == "decoder"]
    # The level of the highest resolution is the one after which nothing is upsampled.
    is_taming = bool(levels) and "decoder.up.0.upsample.conv.weight" not in own
    last = max(levels, default=0) if is_taming else None
    return {_llamagen_name(name, last): value for name, value in own.items()}


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _llamagen_name(name: str, last: int | None) -> str:
    if match := _MIDDLE.fullmatch(name):
        return f"{match[1]}.mid.{_MIDDLE_INDEX[match[2]]}{match[3]}"
    if match := _LEVEL.fullmatch(name):
        side, level, part, rest = match[1], int(match[2]), match[3], match[4]
        if side == "decoder" and last is not None:
            level = last - level
        return f"{side}.conv_blocks.{level}.{'res' if part == 'block' else part}{rest}"
    return name


def _config(weights: Weights, *, unit_codes: bool) -> ImageTokenizerConfig:
    channels = weights["encoder.conv_in.weight"].shape[0]
    levels = 1 + max(_numbers(weights, r"encoder\.conv_blocks\.(\d+)\."), default=-1)
    blocks = [f"encoder.conv_blocks.{level}.res.0.conv1.weight" for level in range(levels)]
    size, width = weights["quantize.embedding.weight"].shape
    return ImageTokenizerConfig(
        channels=channels,
        channel_multipliers=tuple(weights[name].shape[0] // channels for name in blocks),
        encoder_blocks=len(_numbers(weights, r"encoder\.conv_blocks\.0\.res\.(\d+)\.")),
        decoder_blocks=len(_numbers(weights, r"decoder\.conv_blocks\.0\.res\.(\d+)\.")),
        latent_channels=weights["post_quant_conv.weight"].shape[0],
        codebook_size=size,
        code_width=width,
        norm_groups=NORM_GROUPS,
        attention="decoder.mid.1.q.weight" in weights,
        level_attention="decoder.conv_blocks.0.attn.0.q.weight" in weights,
        unit_codes=unit_codes,
    )


def _numbers(weights: Weights, pattern: str) -> set[int]:
    return {int(match[1]) for match in map(re.compile(pattern).match, weights) if match}
