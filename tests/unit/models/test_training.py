"""Training goes on after a stop as if it had not stopped, and a schedule ends at zero."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fleet.errors import FleetError, InvalidInputError
from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import (
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.transformer import TransformerConfig
from fleet.training import cloud
from fleet.training.budget import Budget, Curve, learning_rate_factor, progress_bar
from fleet.training.cloud import CloudRun, Pace, train_cloud, train_step
from fleet.training.examples import VARIANTS, Examples
from fleet.training.muon import orthogonalise
from fleet.training.pictures import Pictures, split_of

CONFIG = TransformerConfig(n_layer=1, n_head=2, dim=16, ffn=24, vocab_size=11, grid=2, n_word=6)


@pytest.fixture
def examples() -> Examples:
    rng = np.random.default_rng(0)
    split = np.zeros(8, dtype=np.uint8)
    pixels = np.zeros((8, 1, 1, 3), dtype=np.uint8)
    pictures = Pictures(pixels, ["a b"] * 8, split, np.ones(8, dtype=np.float32))
    tokens = rng.integers(0, 11, (8, VARIANTS, 4)).astype(np.uint16)
    captions = np.where(np.arange(16) < 13, 0, rng.integers(2, 6, (8, 16)))
    return Examples(tokens, captions, pictures, CaptionVocabulary.from_captions(["a b c d"]))


def test_a_resumed_run_has_the_same_losses(
    examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "BATCH", 4)
    torch.manual_seed(0)
    run = CloudRun.start(CONFIG, minutes=10)
    run.budget.used_s = 100.0  # a clock that stands still
    for _ in range(3):
        train_step(run, examples, 1, Pace())
    run.save(tmp_path / "run.pt")
    expected = [train_step(run, examples, 1, Pace()) for _ in range(3)]

    resumed = CloudRun.start(CONFIG, minutes=10)
    resumed.load(tmp_path / "run.pt")
    actual = [train_step(resumed, examples, 1, Pace()) for _ in range(3)]

    assert actual == expected


def test_a_sample_holds_no_picture_twice_and_follows_the_weights(examples: Examples) -> None:
    examples.pictures.weight[:] = [1, 1, 1, 1, 1e-9, 1e-9, 1e-9, 1e-9]
    tokens = {tuple(row) for row in examples.tokens[:4, 0].tolist()}

    batch = examples.sample("train", 4, np.random.default_rng(0))

    assert {tuple(row) for row in batch.tokens.tolist()} == tokens
    assert len(examples.sample("train", 100, np.random.default_rng(0)).tokens) == 8


def test_the_rate_warms_up_and_ends_at_zero() -> None:
    rates = [learning_rate_factor(f, warm_up=0.1, decay_from=0.5) for f in (0.05, 0.3, 0.75, 1.0)]

    assert rates == [0.5, 1.0, 0.5, 0.0]


def test_a_budget_counts_only_time_between_ticks() -> None:
    budget = Budget(total_s=100.0, used_s=10.0, _last=1000.0)

    assert budget.tick(now=1040.0) == 0.5
    assert budget.tick(now=9999.0) == 1.0


def test_singular_values_end_near_one() -> None:
    matrix = torch.randn(2, 12, 30, generator=torch.Generator().manual_seed(0))

    sizes = torch.linalg.svdvals(orthogonalise(matrix))

    assert sizes.min() > 0.5
    assert sizes.max() < 1.3


def test_an_emoji_and_its_skin_tones_share_a_split() -> None:
    assert {split_of("1F44B") for _ in range(5)} <= {"train", "validation", "test"}
    shares = [split_of(f"{code:X}") for code in range(0x1F300, 0x1F700)]
    assert 0.9 < shares.count("train") / len(shares) < 0.97


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(FleetError, match=r"1 missing \(bias\)"):
        load_weights(torch.nn.Linear(2, 2), {"weight": torch.ones(2, 2)})


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.pt").write_bytes(b"nothing")

    with pytest.raises(InvalidInputError, match=r"broken\.pt"):
        load_checkpoint(tmp_path / "broken.pt")


def test_a_checkpoint_leaves_no_partial_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.pt", {"step": 3})

    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
    assert load_checkpoint(tmp_path / "a.pt") == {"step": 3}


def test_a_picture_has_one_token_for_every_sixteen_pixels() -> None:
    config = ImageTokenizerConfig(channels=8, latent_channels=16, codebook_size=32)
    tokenizer = ImageTokenizer(config).eval()

    with torch.no_grad():
        ids = tokenizer.encode(torch.rand(2, 3, 16, 16) * 2 - 1)
        pictures = tokenizer.decode(ids)

    assert ids.shape == (2, 16)
    assert pictures.shape == (2, 3, 16, 16)
    assert pictures.abs().max() <= 1


def test_a_run_that_takes_steps_again_has_them_once_in_its_curve(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "curve.jsonl")
    for step in (10, 20, 30):
        curve.append(step=step, loss=1.0)

    curve.rewind(20)
    curve.append(step=30, loss=2.0)

    lines = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_bfloat16_is_refused_where_it_would_be_computed_in_software(
    examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})

    with progress_bar("cloud") as bar, pytest.raises(InvalidInputError, match="leave --half out"):
        train_cloud(tmp_path, examples, 1.0, 1, bar, Pace(half=True))
