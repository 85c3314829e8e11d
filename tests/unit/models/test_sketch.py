"""A sketch is what a caption alone says of each place, and is trained as such."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import load_checkpoint, load_device, load_transformer, save_checkpoint
from fleet.models.sketch import CaptionSketch, cosine_maps
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.training import sketch as training
from fleet.training.budget import Bar, progress_bar
from fleet.training.cloud import make_optimizers
from fleet.training.examples import VARIANTS, Examples
from fleet.training.pictures import Pictures
from fleet.training.sketch import SketchRun, known_loss, train_sketch, train_step

CONFIG = TransformerConfig(
    n_layer=1,
    n_head=2,
    dim=16,
    ffn=24,
    vocab_size=11,
    grid=3,
    n_word=8,
    sketch_slots=4,
    sketch_width=8,
)
COUNT = 12


@pytest.fixture
def examples() -> Examples:
    rng = np.random.default_rng(0)
    pixels = np.zeros((COUNT, 1, 1, 3), dtype=np.uint8)
    names = ["a b"] * COUNT
    pictures = Pictures(pixels, names, np.zeros(COUNT, np.uint8), np.ones(COUNT, np.float32))
    tokens = rng.integers(0, 11, (COUNT, VARIANTS, 9)).astype(np.uint16)
    captions = np.zeros((COUNT, 16), np.int64)
    captions[:, -2:] = [(2 + i % 3, 5 + i // 4) for i in range(COUNT)]
    return Examples(tokens, captions, pictures, CaptionVocabulary.from_captions(["a b c d e f"]))


@pytest.fixture
def sketch() -> CaptionSketch:
    torch.manual_seed(0)
    sketch = Transformer(CONFIG).sketch
    assert sketch is not None
    torch.nn.init.normal_(sketch.out.weight)
    return sketch


def padded(*words: int) -> Tensor:
    return torch.tensor([0] * (16 - len(words)) + list(words))


def test_a_fresh_sketch_adds_exactly_nothing() -> None:
    sketch = Transformer(CONFIG).sketch

    assert sketch is not None
    assert not sketch(padded(2, 5)[None]).any()


def test_a_withheld_caption_has_a_sketch_of_zeros(sketch: CaptionSketch) -> None:
    captions = torch.stack([padded(2, 5), padded(2, 5)])

    both = sketch(captions, torch.tensor([False, True]))

    assert both.shape == (2, 9, 16)
    assert both[0].any()
    assert not both[1].any()


def test_padding_says_nothing_and_the_order_of_words_neither(sketch: CaptionSketch) -> None:
    longer = torch.cat([torch.zeros(3, dtype=torch.long), padded(2, 5)])

    expected = sketch(padded(2, 5)[None])

    torch.testing.assert_close(sketch(longer[None]), expected)
    torch.testing.assert_close(sketch(padded(5, 2)[None]), expected)
    assert (sketch(padded(2, 6)[None]) - expected).abs().max() > 1e-3


def test_the_maps_begin_as_waves_at_right_angles() -> None:
    maps = cosine_maps(8, 12)

    products = maps.T @ maps
    assert products.diagonal().min() > 0.1
    torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-5, rtol=0)


def test_a_sketch_remembers_pictures_by_their_captions(
    examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "RATE", 2e-2)
    torch.manual_seed(0)
    run = SketchRun.start(Transformer(CONFIG), minutes=10)
    run.budget.used_s = 100.0  # a clock that stands still
    before = known_loss(run.model, examples)

    for _ in range(80):
        train_step(run, examples, 1)

    assert before == pytest.approx(np.log(11), abs=0.01)  # an output layer of zeros knows nothing
    assert known_loss(run.model, examples) < 0.2 * before


def test_a_trained_output_layer_stays_as_it_is(examples: Examples) -> None:
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    torch.nn.init.normal_(model.output.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = SketchRun.start(model, minutes=10)
    run.budget.used_s = 100.0

    train_step(run, examples, 1)

    moved = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert moved
    assert all(name.startswith("sketch.") for name in moved)


def test_a_resumed_run_has_the_same_losses(examples: Examples, tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = SketchRun.start(Transformer(CONFIG), minutes=10)
    run.budget.used_s = 100.0
    train_step(run, examples, 1)
    run.save(tmp_path / "run.pt")
    expected = [train_step(run, examples, 1) for _ in range(3)]

    resumed = SketchRun.start(Transformer(CONFIG), minutes=10)
    resumed.load(tmp_path / "run.pt")

    assert [train_step(resumed, examples, 1) for _ in range(3)] == expected


def test_both_models_begin_with_their_sketches(
    examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"n_layer": 1, "dim": 8, "ffn": 12, "sketch_slots": 2}
    device_config = TransformerConfig(**vars(CONFIG) | small)
    monkeypatch.setattr(training, "cloud_config", lambda _: CONFIG)
    for module in ("sketch", "device"):
        monkeypatch.setattr(f"fleet.training.{module}.device_config", lambda _: device_config)
    # What an earlier release left has no sketch.
    older = Transformer(TransformerConfig(**vars(CONFIG) | {"sketch_slots": 0}))
    save_checkpoint(tmp_path / "cloud.start.pt", {"config": {}, "model": older.state_dict()})
    with pytest.raises(InvalidInputError, match="train the cloud model first"):
        train_sketch(tmp_path, examples, "device", 0.0, 1, _bar())

    train_sketch(tmp_path, examples, "cloud", 0.001, 1, _bar())
    state = load_checkpoint(tmp_path / "cloud.start.pt")
    save_checkpoint(tmp_path / "cloud.pt", state)
    train_sketch(tmp_path, examples, "device", 0.001, 1, _bar())

    cloud, device = (
        load_transformer(tmp_path / "cloud.pt"),
        load_device(tmp_path / "device.start.pt"),
    )
    assert cloud.tok_embeddings.weight.equal(older.tok_embeddings.weight)
    for model in (cloud, device.transformer):
        assert model.sketch is not None
        assert model.sketch.out.weight.any()


def test_a_sketch_learns_at_a_rate_of_its_own() -> None:
    model = Transformer(CONFIG)

    _, adam = make_optimizers(model)

    assert model.sketch is not None
    slow = {id(weight) for group in adam.param_groups[1:] for weight in group["params"]}
    assert slow == {id(weight) for weight in model.sketch.parameters()}


def _bar() -> Bar:
    with progress_bar("test") as bar:
        return bar
