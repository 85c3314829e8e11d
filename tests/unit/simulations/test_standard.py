"""FID, CLIP score and HPSv2 by weights that are given: here networks of a few numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

from fleet.errors import InvalidInputError
from simulations.cli import main
from simulations.evaluation.metrics import frechet_distance
from simulations.evaluation.standard import open_judges

CAPTIONS = [f"fluent: {name}" for name in ("rocket", "tulip", "heart", "anchor", "cat")]


class Inception(nn.Module):
    """Called as the published file is: the mean of each colour is what it sees."""

    def forward(self, pictures: Tensor, return_features: bool = False) -> Tensor:
        assert pictures.dtype == torch.uint8
        assert return_features
        return pictures.float().mean(dim=(2, 3))


def pictures(seed: int, count: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)


@pytest.fixture
def inception(tmp_path: Path) -> Path:
    path = tmp_path / "inception.pt"
    with pytest.warns(DeprecationWarning, match="deprecated"):  # as the published file is
        torch.jit.script(Inception()).save(str(path))
    return path


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A CLIP of two layers with its processor, saved as published ones are."""
    letters = "abcdefghijklmnopqrstuvwxyz:"
    tokens = [*letters, *(f"{each}</w>" for each in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "projection_dim": 8}
    ends = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1}
    text = small | ends | {"vocab_size": len(tokens), "pad_token_id": len(tokens) - 1}
    vision = small | {"image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    folder = tmp_path / "clip"
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(
        folder
    )
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    CLIPProcessor(
        CLIPImageProcessor(**size), CLIPTokenizer(vocab=vocabulary, merges=[])
    ).save_pretrained(folder)
    return folder


def test_fid_is_of_the_features_as_they_are(inception: Path, tmp_path: Path) -> None:
    judges = open_judges({"fid": inception}, tmp_path / "kept")
    assert judges is not None

    found = judges.figures(pictures(0), pictures(1), CAPTIONS)

    means = [pictures(seed).astype(np.float64).mean(axis=(1, 2)) for seed in (0, 1)]
    assert found["fid"] == pytest.approx(frechet_distance(*means), rel=1e-4)
    assert judges.figures(pictures(0), pictures(0), CAPTIONS)["fid"] == pytest.approx(0, abs=1e-4)
    assert found["clip"] is None


def test_a_clip_score_is_the_cosine_of_each_picture_with_its_caption(
    clip: Path, tmp_path: Path
) -> None:
    judges = open_judges({"clip": clip, "hpsv2": clip}, tmp_path / "kept")
    assert judges is not None

    found = judges.figures(pictures(0), pictures(1), CAPTIONS)

    model, processor = CLIPModel.from_pretrained(clip), CLIPProcessor.from_pretrained(clip)
    own = []
    for picture, caption in zip(pictures(1), CAPTIONS, strict=True):
        given = processor(text=[caption], images=[picture], return_tensors="pt")
        said = model(**given)
        scale = model.logit_scale.exp()
        own.append(float((said.logits_per_image / scale).detach()))
    assert found["hpsv2"] == pytest.approx(100 * np.mean(own), abs=0.05)
    assert found["clip"] == pytest.approx(100 * np.clip(own, 0, None).mean(), abs=0.05)


def test_what_was_said_of_pictures_is_kept(inception: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = open_judges({"fid": inception}, kept)
    assert first is not None
    found = first.figures(pictures(0), pictures(1), CAPTIONS)
    for file in kept.iterdir():
        np.save(file, np.load(file) + (file.name == min(each.name for each in kept.iterdir())))

    again = open_judges({"fid": inception}, kept)

    assert again is not None
    assert again.figures(pictures(0), pictures(1), CAPTIONS)["fid"] != found["fid"]


@pytest.mark.parametrize(("name", "says"), [("fid", "TorchScript"), ("clip", "CLIPModel")])
def test_other_weights_are_told_apart(name: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    if name == "fid":
        path.write_bytes(b"no weights")
    else:
        path.mkdir()

    with pytest.raises(InvalidInputError, match=says):
        open_judges({name: path}, tmp_path / "kept")


def test_weights_without_a_page_are_refused_before_anything_is_drawn(
    inception: Path, tmp_path: Path
) -> None:
    asked = ["evaluate", "--work", str(tmp_path), "--out", str(tmp_path), "--fid", str(inception)]

    result = CliRunner().invoke(main, asked)

    assert result.exit_code != 0
    assert "give --page too" in result.output
