"""Tiny Chameleon and Janus-Pro models in the layouts of their releases, with random weights."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from tests.unit.models.tiny_text import write_chameleon_text, write_janus_text

HEADS, WIDTH, FFN, CODES, GRID, LAYERS = 4, 16, 96, 20, 4, 2
DIM = HEADS * WIDTH
TOKENS = GRID * GRID


def write_chameleon(folder: Path) -> None:
    """Write consolidated.pth, vqgan.ckpt and text_tokenizer.json."""
    # The end of a turn and the beginning of an image have the released ids.
    rows = 8711
    shapes: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (rows, DIM),
        "output.weight": (rows, DIM),
    }
    for layer in range(LAYERS):
        at = f"layers.{layer}."
        shapes |= {f"{at}attention.{part}.weight": (DIM, DIM) for part in ("wq", "wk", "wv", "wo")}
        for part in ("q.weight", "q.bias", "k.weight", "k.bias"):
            side, kind = part.split(".")
            shapes[f"{at}attention.{side}_normalization.{kind}"] = (WIDTH,)
        shapes |= _feed_forward(at, "w1", "w2", "w3")
        shapes |= {f"{at}{norm}.weight": (DIM,) for norm in ("attention_norm", "ffn_norm")}
    weights = _random(shapes | {"norm.weight": (DIM,)})
    torch.save(weights, folder / "consolidated.pth")
    torch.save({"state_dict": _tokenizer(unit=False)}, folder / "vqgan.ckpt")
    write_chameleon_text(folder / "text_tokenizer.json", CODES)


def write_janus(folder: Path) -> None:
    """Write model.safetensors, which holds the image tokenizer too, and tokenizer.json."""
    language, head = "language_model.model.", "gen_head."
    shapes: dict[str, tuple[int, ...]] = {
        f"{language}embed_tokens.weight": (20, DIM),
        f"{language}norm.weight": (DIM,),
        "language_model.lm_head.weight": (20, DIM),
        "gen_embed.weight": (CODES, 8),
        "gen_aligner.layers.0.weight": (DIM, 8),
        "gen_aligner.layers.0.bias": (DIM,),
        "gen_aligner.layers.2.weight": (DIM, DIM),
        "gen_aligner.layers.2.bias": (DIM,),
        f"{head}output_mlp_projector.weight": (DIM, DIM),
        f"{head}output_mlp_projector.bias": (DIM,),
        f"{head}vision_head.weight": (CODES, DIM),
        f"{head}vision_head.bias": (CODES,),
    }
    for layer in range(LAYERS):
        at = f"{language}layers.{layer}."
        shapes |= {f"{at}self_attn.{part}_proj.weight": (DIM, DIM) for part in "qkvo"}
        shapes |= _feed_forward(f"{at}mlp.", "gate_proj", "down_proj", "up_proj")
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{norm}.weight"] = (DIM,)
    weights = _random(shapes)
    weights |= {f"gen_vision_model.{name}": value for name, value in _tokenizer(unit=True).items()}
    folder.mkdir(exist_ok=True)
    save_file({n: w.contiguous() for n, w in weights.items()}, folder / "model.safetensors")
    write_janus_text(folder / "tokenizer.json")


def _feed_forward(at: str, gate: str, down: str, up: str) -> dict[str, tuple[int, ...]]:
    at = at if at.endswith("mlp.") else f"{at}feed_forward."
    shapes = {f"{at}{part}.weight": (FFN, DIM) for part in (gate, up)}
    return {**shapes, f"{at}{down}.weight": (DIM, FFN)}


def _random(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    torch.manual_seed(5)
    return {
        name: torch.randn(shape) * 0.2 + (1.0 if "norm" in name and len(shape) == 1 else 0.0)
        for name, shape in shapes.items()
    }


def _tokenizer(*, unit: bool) -> dict[str, Tensor]:
    torch.manual_seed(6)
    sizes = ImageTokenizerConfig(
        32,
        (1, 1),
        latent_channels=8,
        codebook_size=CODES,
        norm_groups=32,
        attention=True,
        level_attention=unit,
        unit_codes=unit,
    )
    return ImageTokenizer(sizes).state_dict()
