"""Features of captions: T5's, kept by caption, padded on the left."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.caption_features import (
    FeatureCache,
    FeatureCaptions,
    FeatureFile,
    T5Encoder,
    caption_hash,
    clean_caption,
    write_feature_file,
)
from tests.unit.models.tiny_t5 import WIDTH, write_t5

LENGTH = 120


class Counting:
    """Features that depend on the caption, and how often they were computed."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, caption: str) -> Tensor:
        self.calls += 1
        return torch.full((len(caption.split()), WIDTH), float(len(caption)))


def test_features_are_those_of_transformers_t5(tmp_path: Path) -> None:
    theirs = write_t5(tmp_path)
    ids = torch.tensor([[3, 4, 5, 1] + [0] * 8])  # padded, as a batch would be

    features = T5Encoder(tmp_path, LENGTH, torch.float32).encode("A RED heart")

    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
    torch.testing.assert_close(features, expected[0, :4], atol=1e-5, rtol=1e-5)


def test_a_long_caption_is_cut_and_keeps_its_end(tmp_path: Path) -> None:
    write_t5(tmp_path)

    features = T5Encoder(tmp_path, 8, torch.float32).encode("red " * 50)

    assert features.shape == (8, WIDTH)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_without_a_t5_is_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "empty").mkdir()

    with pytest.raises(InvalidInputError, match=f"there is no T5 in .*{name}"):
        T5Encoder(tmp_path / name, LENGTH)


def test_a_caption_is_computed_once_whatever_restarts(tmp_path: Path) -> None:
    source = Counting()

    first = FeatureCache(source, tmp_path / "captions").encode("a red heart")
    again = FeatureCache(source, tmp_path / "captions").encode("A  red heart")

    assert source.calls == 1
    assert torch.equal(first, again)
    assert [path.name for path in (tmp_path / "captions").iterdir()] == [
        caption_hash("a red heart") + ".safetensors"
    ]


def test_a_file_serves_those_who_have_no_t5(tmp_path: Path) -> None:
    path, source = tmp_path / "captions.safetensors", Counting()
    write_feature_file(path, ["a red heart"], source)

    assert write_feature_file(path, ["a red heart", "a blue heart"], source) == 2
    assert source.calls == 2
    assert torch.equal(FeatureFile(path).encode("A blue heart"), source.encode("a blue heart"))
    with pytest.raises(InvalidInputError, match="of 2 captions, but not of this one"):
        FeatureFile(path).encode("a green heart")


def test_features_stand_at_the_end_of_the_positions() -> None:
    captions = FeatureCaptions(Counting(), LENGTH, WIDTH)

    features, valid = captions.features(captions.encode("a red heart"))

    assert features.shape == (LENGTH, WIDTH)
    assert valid.tolist() == [False] * 117 + [True] * 3
    assert features[:117].abs().max() == 0
    assert (features[117:] == len("a red heart")).all()


def test_features_of_another_model_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"are 3 of width 24; this model reads up to 120"):
        FeatureCaptions(Counting(), LENGTH, 2048).encode("a red heart")


@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("  A Red\n heart ", "a red heart"),
        ("see https://example.org/x?y=1 now", "see now"),
        ("<b>bold</b> &amp;amp; more", "bold & more"),
    ],
)
def test_captions_are_cleaned(caption: str, cleaned: str) -> None:
    assert clean_caption(caption) == cleaned
