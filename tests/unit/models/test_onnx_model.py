"""The exported graphs say what torch and the numpy definitions say."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from edge_agent.bundle_device import BundleDevice
from edge_agent.device import Order
from fleet.decoding.accept import Policy
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, guide, sharpen
from fleet.decoding.uncertainty import feature_scalars, scores
from fleet.decoding.verify import Rule
from fleet.errors import BundleError, InvalidInputError
from fleet.interval import interval_softmax
from fleet.models import onnx_model
from fleet.models.bundle import (
    CLOUD_FOLDER,
    DECODER_GRAPH,
    DEVICE_FOLDER,
    PUBLIC_KEY,
    STEP_GRAPH,
    Bundle,
    write_bundle,
)
from fleet.models.caption import pad_left
from fleet.models.export import StepGraph, export_graph, export_step, store_halves
from fleet.models.head_weights import head_of
from fleet.models.image_tokenizer import to_pixels
from fleet.models.interval_head import IntervalHead
from fleet.models.onnx_model import DeviceModel, DeviceState, ImageDecoder, open_graph
from fleet.models.signing import generate_key
from fleet.models.torch_model import CloudModel, load_image_tokenizer
from fleet.prediction import SCORE_NAMES, Prediction
from fleet.protocol.messages import Sampling
from fleet.training.export_bundle import Family, Release, export_family
from tests.unit.models.tiny_family import CAPTIONS, CODES, GRID, THRESHOLDS, write_work

pytestmark = pytest.mark.timeout(300)  # exporting takes its time

TOKENS = GRID * GRID
SAMPLING = Sampling(temperature=1, top_k=0, guidance=2)
POLICY = Policy("spread", 0.5)


@dataclass(frozen=True)
class Exported:
    """A family before its export, and where it was exported to."""

    family: Family
    path: Path
    bundle: Bundle
    device: DeviceModel


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    work = tmp_path_factory.mktemp("work")
    write_work(work)
    generate_key(work / "signing.key", work / "signing.pub")
    release = Release("tiny", 2.0, "spread")
    export_family(work, work / "out", work / "signing.key", release)
    bundle = Bundle.open(work / "out" / DEVICE_FOLDER, work / "out" / PUBLIC_KEY)
    return Exported(Family.load(work), work / "out", bundle, DeviceModel.load(bundle))


def test_the_head_can_be_read_from_a_graph_that_was_just_exported(exported: Exported) -> None:
    graph = exported.bundle.read(STEP_GRAPH)

    found, head = head_of(graph), exported.family.device.head

    assert np.array_equal(found.center, head.center.weight.detach().numpy())
    assert np.array_equal(found.radius_bias, head.radius_up.bias.detach().numpy())


def test_the_graphs_hold_no_path_of_the_machine_that_exported_them(exported: Exported) -> None:
    graphs = list((exported.path / DEVICE_FOLDER).glob("*.onnx"))

    assert len(graphs) == 3
    assert [] == [graph.name for graph in graphs if b".py" in graph.read_bytes()]


@dataclass(frozen=True)
class Expected:
    """What one position should give, by the definitions in numpy."""

    token: int
    scores: NDArray[np.floating]
    feature: NDArray[np.floating]
    hidden: NDArray[np.floating]


def expect(
    exported: Exported, caption: str, tokens: list[int], sampling: Sampling, policy: Policy
) -> list[Expected]:
    family, words = exported.family, exported.device.vocabulary.encode(caption)
    captions = torch.tensor([pad_left(words)] * 2)
    with torch.inference_mode():
        past = torch.tensor([tokens[:-1]] * 2, dtype=torch.int64)
        hidden, logits = family.device.transformer(past, captions, torch.tensor([False, True]))
        radius = family.device.head.radius(hidden[0]).numpy()
        projected = family.projection.project(hidden[0]).numpy()
    center = guide(logits[0].numpy(), logits[1].numpy(), sampling.guidance)
    law = interval_softmax(center, radius)
    codes = family.tokenizer.quantize.codes.detach().numpy()
    said = scores(law, codes)
    noise = gumbel(5, np.arange(len(tokens)), CODES)
    drawn = draw(sharpen(center, sampling), noise)
    deciding = said[:, SCORE_NAMES.index(policy.score)]
    scalars = feature_scalars(law, drawn, deciding, policy.threshold)
    feature = np.concatenate([scalars, projected], axis=1)
    columns = zip(drawn, said, feature, hidden[0].numpy(), strict=True)
    return [Expected(int(t), s, f, h) for t, s, f, h in columns]


def run(
    device: DeviceModel, state: DeviceState, tokens: list[int], start: int = 0
) -> list[Prediction]:
    before = [-1, *tokens]
    return [device.step(state, p, before[p]) for p in range(start, len(tokens))]


def begin(
    exported: Exported, caption: str, sampling: Sampling = SAMPLING, policy: Policy = POLICY
) -> DeviceState:
    words = exported.device.vocabulary.encode(caption)
    return exported.device.begin(words, seed=5, sampling=sampling, policy=policy)


def some_tokens(seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, CODES, TOKENS)]


@pytest.mark.parametrize(
    ("sampling", "policy"),
    [
        (SAMPLING, POLICY),
        (Sampling(temperature=0.7, top_k=7, guidance=1), Policy("entropy", 2.0)),
        (Sampling(temperature=1.3, top_k=1, guidance=3.5), Policy("uncertainty", float("inf"))),
        (Sampling(temperature=1, top_k=1000, guidance=2), Policy("rejection_bound", -float("inf"))),
    ],
)
@pytest.mark.parametrize("caption", CAPTIONS)
def test_the_step_graph_gives_what_numpy_defines(
    exported: Exported, caption: str, sampling: Sampling, policy: Policy
) -> None:
    tokens = some_tokens(1)
    expected = expect(exported, caption, tokens, sampling, policy)

    found = run(exported.device, begin(exported, caption, sampling, policy), tokens)

    assert [each.token for each in found] == [each.token for each in expected]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(mine.feature, theirs.feature, atol=2e-5, rtol=2e-5)
        np.testing.assert_allclose(mine.hidden, theirs.hidden, atol=1e-5, rtol=1e-5)


def test_a_rollback_is_a_step_at_an_earlier_position(exported: Exported) -> None:
    first, second = some_tokens(1), some_tokens(1)
    second[8:] = some_tokens(2)[8:]
    state = begin(exported, CAPTIONS[0])
    run(exported.device, state, first)

    again = run(exported.device, state, second, start=9)

    fresh = run(exported.device, begin(exported, CAPTIONS[0]), second)[9:]
    assert [each.token for each in again] == [each.token for each in fresh]
    for mine, theirs in zip(again, fresh, strict=True):
        np.testing.assert_array_equal(mine.scores, theirs.scores)


def test_a_replayed_prefix_is_as_good_as_a_drafted_one(exported: Exported) -> None:
    tokens = some_tokens(3)
    drafted, replayed = begin(exported, CAPTIONS[1]), begin(exported, CAPTIONS[1])
    run(exported.device, drafted, tokens[:6])

    exported.device.replay(replayed, tokens[:6])

    mine, theirs = (exported.device.step(s, 6, tokens[5]) for s in (drafted, replayed))
    np.testing.assert_array_equal(mine.hidden, theirs.hidden)


@pytest.mark.parametrize("position", [-1, 5, TOKENS])
def test_a_position_out_of_turn_is_refused(exported: Exported, position: int) -> None:
    state = begin(exported, CAPTIONS[0])
    exported.device.replay(state, some_tokens(1)[:4])

    with pytest.raises(InvalidInputError, match=f"position {position} cannot follow 3 tokens"):
        exported.device.step(state, position, 0)


def test_the_manifest_says_what_was_exported(exported: Exported) -> None:
    manifest = exported.bundle.manifest

    assert manifest.tokens == TOKENS
    assert manifest.picture_size == 2 * GRID
    assert manifest.prefix_tokens == 2
    assert manifest.sampling == Sampling(temperature=0.9, top_k=20, guidance=2)
    assert manifest.thresholds == THRESHOLDS
    assert manifest.threshold == THRESHOLDS["spread"]
    scale = np.array(manifest.feature_scale, np.float32)
    np.testing.assert_array_equal(scale, exported.family.feature.scale.numpy())


def test_the_decoder_graph_draws_what_torch_draws(exported: Exported) -> None:
    tokens = np.array(some_tokens(4))

    picture = ImageDecoder.load(exported.bundle).decode(tokens)

    with torch.inference_mode():
        expected = to_pixels(exported.family.tokenizer.decode(torch.from_numpy(tokens)[None]))[0]
    assert picture.shape == (2 * GRID, 2 * GRID, 3)
    assert np.abs(picture.astype(int) - expected.numpy().astype(int)).max() <= 1


@pytest.mark.parametrize("tokens", [[0] * (TOKENS - 1), [CODES] * TOKENS, [-1] * TOKENS])
def test_tokens_that_make_no_picture_are_refused(exported: Exported, tokens: list[int]) -> None:
    decoder = ImageDecoder.load(exported.bundle)

    with pytest.raises(InvalidInputError, match="token"):
        decoder.decode(np.array(tokens))


def test_large_weights_in_half_precision_take_half_the_bytes_and_round() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 48)
    graph = export_graph(layer, {"x": torch.zeros(1, 64)}, ("y",))

    halved = store_halves(graph)

    assert len(graph) - len(halved) == pytest.approx(2 * layer.weight.numel(), abs=200)
    x = torch.randn(1, 64)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.half().float())
        expected = layer(x).numpy()
    (found,) = open_graph(halved).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_graph_that_does_not_load_is_named(exported: Exported, tmp_path: Path) -> None:
    key = exported.path.parent / "signing.key"
    fields = exported.bundle.manifest.model_dump(exclude={"device_version", "files"})
    write_bundle(tmp_path, fields, {DECODER_GRAPH: b"nonsense"}, key)
    bundle = Bundle.open(tmp_path, exported.path / PUBLIC_KEY)

    with pytest.raises(BundleError, match=r"decoder\.onnx is not a graph that runs here"):
        ImageDecoder.load(bundle)


def test_the_cloud_folder_loads_rounded_to_half_precision(exported: Exported) -> None:
    cloud = CloudModel.load(exported.path / CLOUD_FOLDER)

    assert cloud.version == exported.bundle.manifest.cloud_version
    assert cloud.family == exported.bundle.manifest.family
    for name, stored in cloud.engine.transformer.state_dict().items():
        expected = exported.family.cloud.state_dict()[name].half().float()
        assert torch.equal(stored, expected), name
    for name, stored in cloud.interval_feature.state_dict().items():
        assert torch.equal(stored, exported.family.feature.state_dict()[name]), name


def test_the_image_tokenizer_comes_back_with_its_encoder(exported: Exported) -> None:
    tokenizer = load_image_tokenizer(exported.path / CLOUD_FOLDER)

    pictures = torch.rand(1, 3, 2 * GRID, 2 * GRID) * 2 - 1
    assert tokenizer.config == exported.family.tokenizer.config
    assert tokenizer.encode(pictures).shape == (1, TOKENS)


def test_an_uncalibrated_guidance_is_refused(exported: Exported, tmp_path: Path) -> None:
    key = exported.path.parent / "signing.key"

    with pytest.raises(InvalidInputError, match=r"at guidance 4\.5, only at 2"):
        export_family(exported.path.parent, tmp_path, key, Release("tiny", 4.5, "spread"))


def test_logits_come_out_where_they_are_asked_for(exported: Exported) -> None:
    device, words = exported.device, exported.device.vocabulary.encode(CAPTIONS[0])
    tokens = some_tokens(4)
    plain = run(device, begin(exported, CAPTIONS[0]), tokens)
    asking = device.begin(
        words, seed=5, sampling=SAMPLING, policy=POLICY, extras=("logits", "guided_hidden")
    )
    tempered = begin(exported, CAPTIONS[0], policy=Policy("perturbation", 0.5))

    for state in (asking, tempered):
        found = run(device, state, tokens)
        for mine, same in zip(found, plain, strict=True):
            assert same.logits is None
            assert mine.logits is not None
            drawn = draw(sharpen(mine.logits, SAMPLING), state.noise[mine.position])
            assert int(drawn) == mine.token == same.token
            if state is asking:
                assert mine.guided_hidden is not None
                rebuilt = exported.family.device.head.center.weight.detach().numpy()
                np.testing.assert_allclose(rebuilt @ mine.guided_hidden, mine.logits, atol=1e-4)


def test_a_score_from_outside_the_graph_has_no_margin_in_the_feature(exported: Exported) -> None:
    tokens = some_tokens(4)

    for name in ("random", "perturbation"):
        state = begin(exported, CAPTIONS[0], policy=Policy(name, 0.5))
        assert {each.feature[14] for each in run(exported.device, state, tokens)} == {0}


def test_an_older_graph_is_refused_what_it_does_not_give(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"scores": 5, "logits": 0, "guided_hidden": 0}
    monkeypatch.setattr(onnx_model, "_output_size", lambda _, name: sizes[name])

    begin(exported, CAPTIONS[0], policy=Policy("spread", 0.5))
    with pytest.raises(InvalidInputError, match="no score 'spread_bound', only uncertainty"):
        begin(exported, CAPTIONS[0], policy=Policy("spread_bound", 0.5))
    with pytest.raises(InvalidInputError, match="does not give its logits"):
        begin(exported, CAPTIONS[0], policy=Policy("perturbation", 0.5))


def test_an_uncertain_draft_of_the_residual_rule_comes_from_the_law_that_is_sent(
    exported: Exported,
) -> None:
    order = Order(CAPTIONS[0], 5, SAMPLING, Policy("random", 0.5), 2, True, Rule("residual"))
    drafter, tokens = BundleDevice(exported.bundle).begin(order), some_tokens(4)

    drafts = [drafter.step(p, ([-1, *tokens])[p]) for p in range(TOKENS)]

    noise = gumbel(5, np.arange(TOKENS), CODES)
    plain = run(exported.device, begin(exported, CAPTIONS[0]), tokens)
    assert 5 < sum(draft.uncertain for draft in drafts) < 20
    for draft, same, row in zip(drafts, plain, noise, strict=True):
        assert (draft.law is None) is not draft.uncertain
        expected = same.token if draft.law is None else draft.law.draw(row)
        assert draft.token == expected


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_full_and_a_thin_radius_come_out_of_the_graph_as_numpy_defines_them(
    exported: Exported, rank: int, guidance: float
) -> None:
    torch.manual_seed(rank)
    family = exported.family
    head = IntervalHead(family.device.transformer.output, rank)
    torch.nn.init.normal_(head.radius_up.weight, std=0.4)
    codes = family.tokenizer.quantize.codes.detach()
    graph = StepGraph(family.device.transformer, head, family.projection, codes)
    session = open_graph(export_step(graph))
    inputs = begin(exported, CAPTIONS[0]).inputs | {"guidance": np.array([guidance], np.float32)}
    first = {"token": np.zeros(1, np.int64), "position": np.zeros(1, np.int64)}

    said = session.run(["scores"], inputs | first | {"noise": np.zeros(CODES, np.float32)})[0]

    with torch.no_grad():
        start = torch.from_numpy(np.asarray(inputs["start"], np.float32))
        logits, radius = head.center(start).numpy(), head.radius(start[:1]).numpy()
    interval = interval_softmax(guide(logits[:1], logits[1:], guidance), radius)
    np.testing.assert_allclose(said, scores(interval, codes.numpy())[0], rtol=3e-4, atol=1e-5)
