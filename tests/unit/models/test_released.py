"""A release becomes a training folder again."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fleet.errors import InvalidInputError
from fleet.models.bundle import DEVICE_FOLDER
from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import load_transformer
from fleet.models.signing import generate_key
from fleet.training.export_bundle import Family, Release, export_family
from fleet.training.released import CLOUD_START, unpack_release
from tests.unit.models.tiny_family import write_work

CURVE = '{"step": 10, "s": 9.5, "loss": 1.5}\n'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("work")
    write_work(work)
    (work / "cloud.jsonl").write_text(CURVE)
    generate_key(work / "signing.key", work / "signing.pub")
    export_family(work, work / "out", work / "signing.key", Release("tiny", 2.0, "spread"))
    return work


@pytest.fixture
def unpacked(trained: Path, tmp_path: Path) -> Path:
    (tmp_path / "vocabulary.json").write_bytes((trained / "vocabulary.json").read_bytes())
    unpack_release(trained / "out", tmp_path)
    return tmp_path


def same(one: nn.Module, other: nn.Module, dtype: torch.dtype) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a.to(dtype), b.to(dtype)) for a, b in pairs)


def test_the_parts_of_a_release_are_those_that_were_trained(trained: Path, unpacked: Path) -> None:
    before, after = Family.load(trained), Family.load(unpacked)

    assert after.cloud.config == before.cloud.config
    assert after.device.head.rank == before.device.head.rank
    assert same(after.cloud, before.cloud, torch.float16)
    assert same(after.tokenizer, before.tokenizer, torch.float16)
    assert same(after.device.transformer, before.device.transformer, torch.float32)
    assert same(after.device.head, before.device.head, torch.float32)
    assert same(after.projection, before.projection, torch.float32)
    assert same(after.feature, before.feature, torch.float32)
    # No more is known of the share than the whole tokens that it comes to.
    share = after.calibration["prefix_share"]
    assert int(share * 25) == int(before.calibration["prefix_share"] * 25)
    assert {**after.calibration, "prefix_share": 0} == {**before.calibration, "prefix_share": 0}


def test_a_release_exported_again_is_the_same_bundle(trained: Path, unpacked: Path) -> None:
    release = Release("tiny", 2.0, "spread")

    export_family(unpacked, unpacked / "out", trained / "signing.key", release)

    graphs = sorted((trained / "out" / DEVICE_FOLDER).glob("*.onnx"))
    assert len(graphs) == 3
    for graph in graphs:
        assert graph.read_bytes() == (unpacked / "out" / DEVICE_FOLDER / graph.name).read_bytes()


def test_curves_go_with_a_release(unpacked: Path) -> None:
    assert (unpacked / "cloud.jsonl").read_text() == CURVE
    assert not (unpacked / "device.jsonl").exists()


def test_cloud_training_goes_on_from_a_release(unpacked: Path) -> None:
    start, cloud = (load_transformer(unpacked / name) for name in (CLOUD_START, "cloud.pt"))

    assert same(start, cloud, torch.float32)


def test_a_release_unpacks_to_the_same_bytes_each_time(trained: Path, unpacked: Path) -> None:
    first = {path.name: path.read_bytes() for path in unpacked.glob("*.pt")}

    for _ in range(3):
        unpack_release(trained / "out", unpacked)

        assert {path.name: path.read_bytes() for path in unpacked.glob("*.pt")} == first


def test_a_release_of_other_words_is_refused(trained: Path, tmp_path: Path) -> None:
    CaptionVocabulary.from_captions(["google: cat"]).save(tmp_path / "vocabulary.json")

    with pytest.raises(InvalidInputError, match="other caption words"):
        unpack_release(trained / "out", tmp_path)
