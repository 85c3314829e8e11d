"""The stages after the cloud: a device learns, is calibrated, and the adapter sees its drift."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.branches import Branches
from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import DeviceParts
from fleet.models.interval_head import interval_law, scores
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.prediction import SCORE_NAMES
from fleet.training import calibrate as calibration
from fleet.training import device as device_training
from fleet.training.adapter import AdapterRun, LocalPolicy
from fleet.training.budget import progress_bar
from fleet.training.calibrate import CALL_SHARE, calibrate
from fleet.training.device import DeviceModel, DeviceRun, Recipe
from fleet.training.examples import VARIANTS, Examples
from fleet.training.histories import History, PictureHistories
from fleet.training.metrics import compare, summarise
from fleet.training.pictures import Pictures
from fleet.training.sampling import SamplingRule, draw_images
from fleet.training.stages import start_adapter
from fleet.training.teacher import Teacher
from fleet.training.together import CALIBRATED, Pair, Rule, draw_together

CONFIG = TransformerConfig(n_layer=2, n_head=2, dim=16, ffn=24, vocab_size=11, grid=4, n_word=6)
SMALL = TransformerConfig(n_layer=1, n_head=2, dim=8, ffn=12, vocab_size=11, grid=4, n_word=6)


@pytest.fixture
def examples() -> Examples:
    rng = np.random.default_rng(0)
    split = np.arange(96).astype(np.uint8) % 2
    pixels = np.zeros((96, 1, 1, 3), dtype=np.uint8)
    pictures = Pictures(pixels, ["a b"] * 96, split, np.ones(96, dtype=np.float32))
    tokens = rng.integers(0, 11, (96, VARIANTS, 16)).astype(np.uint16)
    captions = np.where(np.arange(16) < 13, 0, rng.integers(2, 6, (96, 16)))
    return Examples(tokens, captions, pictures, CaptionVocabulary.from_captions(["a b c d"]))


def random_weights(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.5)


@pytest.fixture
def pair() -> Pair:
    torch.manual_seed(0)
    cloud, device = Transformer(CONFIG).eval(), DeviceModel(SMALL, Recipe(rank=2)).eval()
    random_weights(cloud)
    random_weights(device)
    codes = torch.nn.functional.normalize(torch.randn(11, 4), dim=-1)
    return Pair(cloud, DeviceParts(device.transformer, device.head), codes)


def adapter_run(pair: Pair, threshold: float, guidance: float = 2.0) -> AdapterRun:
    policy = LocalPolicy("entropy", threshold, 3, SamplingRule(guidance, 0.8))
    return AdapterRun.start(pair.cloud, pair.device.head, pair.codes, policy)


def batch_of(pair: Pair, examples: Examples) -> tuple[History, Tensor]:
    source = PictureHistories(pair.cloud, pair.device, examples, guided=True)
    clean = source.of(examples.take("train", 4))
    return clean, torch.tensor([True, False, False, False])


def test_the_prefix_and_uncertain_tokens_are_never_replaced(pair: Pair, examples: Examples) -> None:
    batch, withheld = batch_of(pair, examples)

    never = adapter_run(pair, -1.0).drift(batch, withheld, torch.Generator())
    always = adapter_run(pair, 99.0).drift(batch, withheld, torch.Generator())

    assert torch.equal(never.tokens, batch.tokens)
    assert torch.equal(always.tokens[:, :3], batch.tokens[:, :3])
    assert always.local[:, 3:].all()


def test_a_fresh_adapter_leaves_the_loss_as_it_is(pair: Pair, examples: Examples) -> None:
    run = adapter_run(pair, 99.0)
    drift = run.drift(*batch_of(pair, examples), torch.Generator())

    assert torch.equal(run.loss(drift), run.loss(drift, switched_on=False))


def test_the_adapter_learns_and_the_cloud_does_not(pair: Pair, examples: Examples) -> None:
    run = adapter_run(pair, 99.0)
    drift = run.drift(*batch_of(pair, examples), torch.Generator())
    before = run.loss(drift)
    optimizer = torch.optim.Adam(run.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        run.loss(drift).backward()
        optimizer.step()

    assert run.loss(drift) < 0.9 * before
    assert all(weight.grad is None for weight in run.cloud.parameters())


def test_without_drift_the_loss_is_zero(pair: Pair, examples: Examples) -> None:
    run = adapter_run(pair, -1.0)

    loss = run.loss(run.drift(*batch_of(pair, examples), torch.Generator()))

    assert abs(float(loss.detach())) < 1e-5


def test_a_known_picture_has_the_law_it_had(pair: Pair, examples: Examples) -> None:
    teacher = Teacher(pair.cloud, examples)
    rows, nobody = np.array([0, 2, 4]), torch.zeros(3, dtype=torch.bool)
    positions = torch.tensor([0, 5, 15])

    _, first = teacher.laws(rows, nobody, positions)
    _, again = teacher.laws(rows, nobody, positions)

    assert first.shape == (3, 3, 11)
    torch.testing.assert_close(first, again, atol=5e-3, rtol=0)


def test_a_disturbed_picture_is_wrong_in_the_same_places_each_time(
    pair: Pair, examples: Examples
) -> None:
    rows, nobody, positions = np.arange(5), torch.zeros(5, dtype=torch.bool), torch.arange(16)
    true, _ = Teacher(pair.cloud, examples).laws(rows, nobody, positions)

    seen, laws = Teacher(pair.cloud, examples, 1.0).laws(rows, nobody, positions)

    again, _ = Teacher(pair.cloud, examples, 1.0).laws(rows, nobody, positions)
    assert torch.equal(again.tokens, seen.tokens)
    assert 0 < (seen.tokens != true.tokens).float().mean() < 0.6
    expected = pair.cloud(seen.tokens[:, :-1], seen.captions)[1].softmax(dim=-1)
    torch.testing.assert_close(laws, expected, atol=5e-3, rtol=0)


def test_a_device_comes_nearer_to_its_teacher(
    pair: Pair, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_training, "device_config", lambda _: SMALL)
    teacher, run = Teacher(pair.cloud, examples), DeviceRun.start(pair.cloud, minutes=10)
    run.budget.used_s = 300.0  # all terms are on, and the rate is high

    figures = [device_training.train_step(run, teacher, seed=1) for _ in range(40)]

    assert np.mean([f["kl"] for f in figures[-5:]]) < np.mean([f["kl"] for f in figures[:5]])
    assert figures[-1]["radius"] < figures[0]["radius"]


def test_device_training_begins_with_a_released_device(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_training, "device_config", lambda _: SMALL)
    released, run = (DeviceRun.start(pair.cloud, minutes=1.0) for _ in "ab")
    random_weights(released.model)

    run.begin_with(DeviceParts(released.model.transformer, released.model.head))

    for name, weight in released.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], weight), name
        assert torch.equal(run.average.weights[name], weight), name


def test_calibration_finds_the_thresholds_at_which_pictures_drawn_together_ask_as_wanted(
    pair: Pair, examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "CAPTIONS", 60)
    with progress_bar("calibrate") as bar:
        calibrate(tmp_path, pair, examples, SamplingRule(2.0, 0.8), 1, bar)

    written = json.loads((tmp_path / "calibration.json").read_text())
    assert set(written["thresholds"]) == {"2"}
    assert tuple(written["thresholds"]["2"]) == CALIBRATED
    # Another drawing than those the thresholds come from; tiny pictures vary a lot.
    assert written["measured_share"]["spread"] == pytest.approx(CALL_SHARE, abs=0.12)
    assert "oracle_tv" in json.loads((tmp_path / "metrics.json").read_text())


@torch.inference_mode()
def test_pictures_drawn_together_are_the_clouds_where_all_tokens_ask(
    pair: Pair, examples: Examples
) -> None:
    captions, sampling = examples.take("train", 2).captions, SamplingRule(2.0, temperature=0.0)
    length = pair.cloud.config.n_token
    alone = draw_images(pair.cloud, captions, sampling, torch.Generator().manual_seed(1))

    def scores_of(tokens: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        device = Branches.of_words(pair.device.transformer, captions.numpy(), sampling.guidance)
        said = []
        for position in range(length):
            law = interval_law(
                torch.from_numpy(device.logits()), pair.device.head.radius(device.hidden)
            )
            said.append(scores(law, pair.codes).double().numpy())
            if position + 1 < length:
                device.push(tokens[:, position].numpy())
        return np.stack(said, axis=-1)

    drawn, asked = draw_together(
        pair,
        captions,
        Rule(0, sampling),
        lambda own: np.ones(own.shape, np.bool_),
        torch.Generator().manual_seed(1),
    )

    assert asked.all()
    np.testing.assert_allclose(drawn[:, :-1], scores_of(alone), rtol=1e-4, atol=1e-5)


def test_an_adapter_refuses_a_sampling_that_was_not_calibrated(tmp_path: Path) -> None:
    content = {"temperature": 1.0, "top_k": 0, "thresholds": {"2": {}}}
    (tmp_path / "calibration.json").write_text(json.dumps(content))

    with pytest.raises(InvalidInputError, match="not calibrated"):
        start_adapter(tmp_path, "spread", SamplingRule(2.0, 0.8))


def test_the_true_distance_is_the_best_score_of_itself(pair: Pair, examples: Examples) -> None:
    compared = compare(pair.cloud, pair.device, pair.codes, examples.take("train", 6))

    table = summarise(compared, call_share=0.25)

    assert table["oracle_tv"]["spearman_tv"] == pytest.approx(1.0)
    assert table["oracle_tv"]["tv_left"] <= min(
        row["tv_left"] for n, row in table.items() if n in SCORE_NAMES
    )


def test_drawing_is_a_function_of_the_seed(pair: Pair, examples: Examples) -> None:
    captions = examples.take("train", 2).captions
    rule = SamplingRule(3.0, 0.9, top_k=5)

    drawn = [
        draw_images(pair.cloud, captions, rule, torch.Generator().manual_seed(4)) for _ in "ab"
    ]

    assert torch.equal(*drawn)
    assert drawn[0].shape == (2, 16)
