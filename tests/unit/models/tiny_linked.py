"""Tiny models of each kind in released files, added as `cloud_hub models add` does it."""

from pathlib import Path
from typing import Literal

import torch

from cloud_hub.models import Addition, add_model
from fleet.models.caption_features import caption_hash, save_features
from fleet.models.checkpoint import save_checkpoint
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.linked_config import CaptionSource
from tests.unit.models import prompt_files
from tests.unit.models.llamagen_files import GRID, HEADS, caption_weights, class_weights
from tests.unit.models.prompt_files import write_chameleon, write_janus

CODES = 97
CAPTIONS = ("a red heart", "a blue heart", "two hearts", "a house")


def add_classes(work: Path) -> Path:
    """Return the folder of a class-conditional model of ten classes."""
    torch.save({"model": class_weights()}, work / "c2i.pt")
    return _add(work, "c2i.pt", "tiny-classes", None)


def add_captions(work: Path) -> Path:
    """Return the folder of a model that reads features, which it has of a few captions."""
    torch.save({"model": caption_weights()}, work / "t2i.pt")
    noise = torch.Generator().manual_seed(1)
    features = {
        caption_hash(caption): torch.randn(3 + index, 24, generator=noise)
        for index, caption in enumerate(CAPTIONS)
    }
    save_features(work / "captions.safetensors", features)
    source = CaptionSource(kind="file", path=work / "captions.safetensors")
    return _add(work, "t2i.pt", "tiny-captions", source)


def add_prompts(work: Path, kind: Literal["chameleon", "janus"]) -> Path:
    """Return the folder of a model that reads prompts of at most sixteen text tokens."""
    if kind == "chameleon":
        write_chameleon(work)
        weights, vq = work / "consolidated.pth", work / "vqgan.ckpt"
        text, heads = work / "text_tokenizer.json", None
    else:
        write_janus(work / "janus")
        weights = vq = work / "janus"
        text, heads = weights / "tokenizer.json", prompt_files.HEADS
    order = Addition(
        weights,
        vq,
        prompt_files.GRID,
        heads,
        dtype="float32",
        captions=CaptionSource(kind="prompts", path=text),
        name=f"tiny-{kind}",
        kind=kind,
        prompt_length=16,
    )
    return add_model(order, work / "data").folder


def _add(work: Path, weights: str, name: str, captions: CaptionSource | None) -> Path:
    torch.manual_seed(1)
    sizes = ImageTokenizerConfig(
        32, (1, 1), latent_channels=8, codebook_size=CODES, norm_groups=32, attention=True
    )
    save_checkpoint(work / "vq.pt", {"model": ImageTokenizer(sizes).state_dict()})
    order = Addition(
        work / weights, work / "vq.pt", GRID, HEADS, dtype="float32", captions=captions, name=name
    )
    return add_model(order, work / "data").folder
