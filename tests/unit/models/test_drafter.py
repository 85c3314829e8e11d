"""A drafter of a cloud checkpoint: its graph, its rollback, its int8, and what training makes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleet.errors import InvalidInputError
from fleet.models.conditions import Prompt
from fleet.models.drafter import Drafter, Start
from fleet.models.drafter_export import DrafterStep, export_classes, export_drafter
from fleet.models.head_weights import head_of
from fleet.models.interval_feature import FeatureProjection
from fleet.models.linked import LinkedModel, load_linked
from fleet.models.onnx_model import open_graph
from fleet.models.onnx_weights import in_int8
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.training.drafter import CHECKPOINT, Course, look, train_drafter
from fleet.training.drawings import Drawings, draw_pictures
from fleet.training.sampling import SamplingRule
from tests.unit.models.llamagen_files import GRID
from tests.unit.models.tiny_linked import CODES, add_captions, add_classes, add_prompts

TOKENS, CLASS, GUIDANCE = GRID * GRID, 3, 3.0
RANK = 4


class NoBar:
    """A bar that nobody looks at."""

    def show(self, fraction: float, figures: str) -> None:
        pass


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> LinkedModel:
    return load_linked(add_classes(tmp_path_factory.mktemp("classes")))


@pytest.fixture(scope="module")
def drafter(cloud: LinkedModel) -> Drafter:
    torch.manual_seed(2)
    made = Drafter.of(cloud.engine.transformer, RANK).eval()
    nn.init.normal_(made.head.radius_up.weight, std=0.1)
    return made.requires_grad_(False)


@pytest.fixture(scope="module")
def graph(drafter: Drafter) -> bytes:
    codes = torch.nn.functional.normalize(torch.randn(CODES, 8), dim=-1)
    projection = FeatureProjection(drafter.body.config.dim)
    return export_drafter(DrafterStep(drafter, projection, codes))


@pytest.fixture(scope="module")
def start(cloud: LinkedModel) -> Start:
    """The starts of all classes, "no class" last."""
    every = torch.arange(11)
    with torch.inference_mode():
        return Start.of(cloud.engine.transformer.condition_classes(every))


class OnDevice:
    """A graph as a device runs it: the caller writes the rows."""

    def __init__(self, graph: bytes, drafter: Drafter, start: Start) -> None:
        config = drafter.body.config
        shape = (2, 2, 2, config.n_head, config.n_token, config.head_dim)
        self.session, self.cache = open_graph(graph), np.zeros(shape, np.float32)
        value = start.value.view(1, 2, config.n_head, config.head_dim)
        self.inputs: dict[str, Any] = {
            **{f"cache_{i}": part for i, part in enumerate(self.cache.reshape(-1, *shape[2:]))},
            "value": value.numpy(),
            "log_n": start.log_n[:1].numpy(),
            "start": start.state.numpy(),
            "noise": np.zeros(config.vocab_size, np.float32),
            "temperature": np.ones(1, np.float32),
            "guidance": np.full(1, GUIDANCE, np.float32),
            "top_k": np.zeros(1, np.int64),
            "score": np.zeros(1, np.int64),
            "threshold": np.ones(1, np.float32),
        }

    def step(self, position: int, token: int) -> tuple[Any, Any]:
        """Return hidden state and guided logits of a position."""
        given = {"token": np.array([token]), "position": np.array([position])}
        names = ["rows", "hidden", "logits"]
        rows, hidden, logits = self.session.run(names, {**self.inputs, **given})
        if position:
            self.cache[..., position - 1, :] = rows
        return hidden, logits


def expected(drafter: Drafter, tokens: torch.Tensor, start: Start) -> tuple[Any, Any]:
    """Return hidden states [T, D] and guided logits [T, V] from whole pictures in torch."""
    rows = tokens.expand(2, -1)[:, :-1]
    nothing = torch.zeros(2, rows.shape[1], drafter.body.config.dim)
    states = drafter.body.own_states(rows, nothing, start, rows.shape[1])
    states = torch.cat([start.state[:, None], drafter.body(rows, states, start)], dim=1)
    cond, uncond = drafter.head.center(states)
    return states[0].numpy(), (uncond + GUIDANCE * (cond - uncond)).numpy()


def test_the_graph_is_the_drafter_on_states_of_its_own(
    graph: bytes, drafter: Drafter, start: Start
) -> None:
    tokens = torch.randint(0, CODES, (1, TOKENS), generator=torch.Generator().manual_seed(5))
    pair = start.at(torch.tensor([CLASS, 10]))
    device = OnDevice(graph, drafter, pair)

    seen = [
        device.step(position, int(tokens[0, position - 1]) if position else -1)
        for position in range(TOKENS)
    ]

    states, logits = expected(drafter, tokens, pair)
    np.testing.assert_allclose(np.stack([one[0] for one in seen]), states, atol=2e-5)
    np.testing.assert_allclose(np.stack([one[1] for one in seen]), logits, atol=2e-4)


def test_a_rollback_is_an_earlier_position(graph: bytes, drafter: Drafter, start: Start) -> None:
    pair = start.at(torch.tensor([CLASS, 10]))
    device, straight = (OnDevice(graph, drafter, pair) for _ in range(2))
    for position, token in enumerate([-1, 7, 8, 9, 10, 11]):
        device.step(position, token)

    corrected = [device.step(position, token) for position, token in ((3, 20), (4, 21))]

    known = [straight.step(position, token) for position, token in enumerate([-1, 7, 8, 20, 21])]
    for (hidden, logits), (want, law) in zip(corrected, known[3:], strict=True):
        np.testing.assert_array_equal(hidden, want)
        np.testing.assert_array_equal(logits, law)


def test_int8_is_a_third_of_the_size_and_nearly_the_same_law(
    graph: bytes, drafter: Drafter, start: Start
) -> None:
    pair = start.at(torch.tensor([CLASS, 10]))
    small = in_int8(graph)
    whole, other = (OnDevice(each, drafter, pair) for each in (graph, small))

    laws = []
    for position, token in enumerate([-1, 7, 8, 9]):
        pair_of = [torch.from_numpy(each.step(position, token)[1]) for each in (whole, other)]
        laws.append([logits.softmax(dim=-1) for logits in pair_of])

    assert len(small) < 0.45 * len(graph)
    assert max(float((one - two).abs().sum()) / 2 for one, two in laws) < 0.1
    assert any(not torch.equal(one, two) for one, two in laws)


def test_rounds_find_the_head_in_the_float_graph(graph: bytes, drafter: Drafter) -> None:
    head = head_of(graph)

    np.testing.assert_array_equal(head.center, drafter.head.center.weight.numpy())
    assert head.radius_down.shape == (RANK, drafter.body.config.dim)


def test_the_class_graph_holds_what_the_cloud_says_of_each_class(start: Start) -> None:
    session = open_graph(export_classes(start, first_word=3, heads=4))

    value, log_n, state = session.run(None, {"caption": np.array([2, 3 + CLASS])})

    pair = start.at(torch.tensor([CLASS, 10]))
    np.testing.assert_allclose(value.reshape(2, -1), pair.value.numpy(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(state, pair.state.numpy(), rtol=1e-3, atol=1e-3)
    assert log_n.tolist() == [0.0]


def test_states_of_another_width_have_no_drafter() -> None:
    config = TransformerConfig(1, 2, 8, 16, 11, grid=2, n_word=5, has_prompt=True, head_hidden=12)

    with pytest.raises(InvalidInputError, match="as wide as its layer: 8 numbers, not 12"):
        Drafter.of(Transformer(config), RANK)


@pytest.mark.parametrize("kind", ["chameleon", "janus"])
def test_a_drafter_of_a_model_of_prompts_knows_the_prompt_by_one_position(
    tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("tokenizers")
    cloud = load_linked(add_prompts(tmp_path, kind))  # type: ignore[arg-type]
    model, size = cloud.engine.transformer, cloud.engine.config
    torch.manual_seed(2)
    made = Drafter.of(model, RANK).eval().requires_grad_(False)
    nn.init.normal_(made.body.fc.weight, std=0.1)
    codes = nn.functional.normalize(torch.randn(size.vocab_size, 8), dim=-1)
    graph = export_drafter(DrafterStep(made, FeatureProjection(size.dim), codes))
    pair = cloud.condition_pair(cloud.captions.encode("a red heart"))
    assert isinstance(pair, Prompt)
    start = Start.of(pair)
    tokens = torch.randint(0, size.vocab_size, (1, size.n_token))

    device = OnDevice(graph, made, start)
    seen = [
        device.step(position, int(tokens[0, position - 1]) if position else -1)
        for position in range(size.n_token)
    ]

    last = pair.rows[-1, 1]  # values [2, H, 16, hd], padded on the left
    for row, length in enumerate(pair.lengths.tolist()):
        mean = last[row, :, 16 - length :].mean(dim=1).flatten()
        torch.testing.assert_close(start.value[row], mean)
    states, logits = expected(made, tokens, start)
    np.testing.assert_allclose(np.stack([one[0] for one in seen]), states, atol=2e-4)
    np.testing.assert_allclose(np.stack([one[1] for one in seen]), logits, atol=2e-3)
    head = head_of(graph)
    bias = model.output.bias.detach().numpy() if kind == "janus" else np.zeros(0)
    np.testing.assert_array_equal(head.center_bias, bias)


@pytest.mark.parametrize("kind", ["classes", "captions", "chameleon", "janus"])
def test_training_brings_a_drafter_near_the_cloud(tmp_path: Path, kind: str) -> None:
    folder, captions = _added(tmp_path, kind)
    cloud, bar = load_linked(folder), NoBar()
    codes = cloud.vocab_size
    rule = SamplingRule(guidance=2.0)
    draw_pictures(tmp_path, cloud, captions, rule, batch=12, seed=1, bar=bar)  # type: ignore[arg-type]
    drawings = Drawings.load(tmp_path)
    course = Course(rate=3e-3, batch=8, positions=8)

    runs = [
        train_drafter(work, cloud, minutes, course, seed=1, bar=bar)  # type: ignore[arg-type]
        for work, minutes in ((tmp_path, 0.0), (tmp_path, 0.08))
    ]

    before, after = (look(run, drawings) for run in (fresh(runs[0], cloud), runs[1]))
    assert drawings.tokens.shape == (30, cloud.tokens)
    assert drawings.tokens.max() < codes
    assert runs[1].step > 3
    assert after["given_kl"] < before["given_kl"]
    assert after["own_kl"] < before["own_kl"]
    assert (tmp_path / CHECKPOINT).exists()


def _added(work: Path, kind: str) -> tuple[Path, list[str]]:
    """Return a model's folder, and captions that it reads."""
    if kind == "classes":
        return add_classes(work), ["3", "7"] * 15
    if kind == "captions":
        return add_captions(work), ["a red heart", "a house"] * 15
    pytest.importorskip("tokenizers")
    return add_prompts(work, kind), ["a red heart", "blue"] * 15  # type: ignore[arg-type]


def fresh(run: Any, cloud: LinkedModel) -> Any:
    """Return the run with a drafter that was never trained."""
    return replace(run, drafter=Drafter.of(cloud.engine.transformer, run.course.recipe.rank))


def test_drawing_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    cloud, rule, bar = load_linked(add_classes(tmp_path)), SamplingRule(guidance=2.0), NoBar()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    captions = [str(number) for number in range(10)]
    draw_pictures(whole, cloud, captions, rule, batch=4, seed=3, bar=bar)  # type: ignore[arg-type]
    draw_pictures(parts, cloud, captions[:4], rule, batch=4, seed=3, bar=bar)  # type: ignore[arg-type]

    draw_pictures(parts, cloud, captions, rule, batch=4, seed=3, bar=bar)  # type: ignore[arg-type]

    one, other = Drawings.load(whole), Drawings.load(parts)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert one.captions == other.captions
    assert list(one.rows("validation")) == [9]
