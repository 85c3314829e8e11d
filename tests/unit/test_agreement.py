"""Numpy defines intervals, scores, features and the draw; torch and ONNX agree with it."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from fleet.decoding import uncertainty
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, guide, sharpen
from fleet.interval import MAX_RADIUS, Interval, interval_softmax
from fleet.models import interval_head
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, STEP_GRAPH, Bundle, reference_path
from fleet.models.export import SKETCH
from fleet.prediction import FEATURE_SCALARS, FEATURE_SIZE, SCORE_NAMES
from fleet.protocol.messages import Sampling
from tests.unit.decoding.laws import Floats, heads

SYMBOLS = 1024
WEIGHTS = (
    "codes",
    "head.center.weight",
    "head.radius_down.weight",
    "head.radius_up.bias",
    "head.radius_up.weight",
    "projection.project.weight",
)
CODES = uncertainty.unit_codebook(
    np.random.default_rng(7).normal(size=(SYMBOLS, 8)).astype(np.float32)
)
# Two programs that add a thousand fp32 numbers in different orders.
SCORES_CLOSE: dict[str, Any] = {"rtol": 3e-5, "atol": 2e-6}
# Logarithms of what may be tiny, so the tolerance is that of log-odds up to 70.
SCALARS_CLOSE: dict[str, Any] = {"rtol": 3e-5, "atol": 5e-5}
# The graph makes the logits too, of size up to 200, in fp32.
GRAPH_CLOSE: dict[str, Any] = {"rtol": 3e-4, "atol": 3e-4}

Double = NDArray[np.float64]


def exact(center: Floats, radius: Floats) -> Interval:
    """The interval in float64: what both fp32 programs approximate."""
    return interval_softmax(center.astype(np.float64), radius.astype(np.float64))


def expected_scores(interval: Interval, codes: Floats) -> Double:
    return uncertainty.scores(interval, codes.astype(np.float64)).astype(np.float64)


def expected_scalars(interval: Interval, token: NDArray[np.int64], margin: float) -> Double:
    score = np.full(interval.radius.shape[:-1], margin)
    return uncertainty.feature_scalars(interval, token, score, 0.0).astype(np.float64)


def peaked() -> tuple[Floats, Floats]:
    """One code far above all others: probabilities down to 1e-27, where shortcuts show."""
    logits = np.full((2, SYMBOLS), [[-30.0], [-5.0]], np.float32)
    logits[:, 3] = 10.0
    return logits, np.full_like(logits, 0.5)


@settings(max_examples=40)
@given(heads((2, 50, SYMBOLS)), st.integers(0, 2**31))
@example(peaked(), 3)
@example(peaked(), 4)
def test_torch_agrees_on_bounds_scores_and_scalars(head: tuple[Floats, Floats], pick: int) -> None:
    center, radius = (array.astype(np.float32) for array in head)
    token = np.full(2, pick % center.shape[-1])
    interval = exact(center, radius)

    law = interval_head.interval_law(torch.from_numpy(center), torch.from_numpy(radius))
    codes = CODES[: center.shape[-1]]
    scores = interval_head.scores(law, torch.from_numpy(codes))
    scalars = interval_head.feature_scalars(law, torch.from_numpy(token), torch.zeros(2), 0.25)

    close: dict[str, Any] = {"rtol": 1e-5, "atol": 2e-6}
    np.testing.assert_allclose(law.log_odds, interval.log_odds, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(law.log_lower, interval.log_lower, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(law.log_center, interval.log_center, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(law.log_upper, interval.log_upper, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(law.below, interval.below, **close)
    np.testing.assert_allclose(law.above, interval.above, **close)
    np.testing.assert_allclose(law.width, interval.width, **close)
    np.testing.assert_allclose(scores, expected_scores(interval, codes), **SCORES_CLOSE)
    np.testing.assert_allclose(scalars, expected_scalars(interval, token, -0.25), **SCALARS_CLOSE)


@settings(max_examples=40)
@given(heads((2, 50, SYMBOLS)))
def test_radii_of_zero_give_scores_of_exactly_zero_in_torch_too(
    head: tuple[Floats, Floats],
) -> None:
    center = torch.from_numpy(head[0].astype(np.float32))

    law = interval_head.interval_law(center, torch.zeros_like(center))
    scores = interval_head.scores(law, torch.from_numpy(CODES[: center.shape[-1]]))

    assert not scores[:, :2].any()


def single(value: float, kind: type[np.generic] = np.float32) -> NDArray[np.generic]:
    return np.array([value], kind)


class Step:
    """The shipped step graph, fed with hidden states.

    At position 0 the hidden state is an input, so that any logits can be had from it.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.content = bundle.read(STEP_GRAPH)
        graph = onnx.load_from_string(self.content).graph
        stored = {each.name: each for each in graph.initializer}
        self.weights = {
            name: numpy_helper.to_array(stored[name]).astype(np.float64) for name in WEIGHTS
        }
        manifest = bundle.manifest
        pair, heads = (manifest.layers, 2), (manifest.heads, manifest.head_dim)
        cells = (2, manifest.heads, manifest.tokens, manifest.head_dim)
        self.inputs: dict[str, NDArray[Any]] = {
            "token": single(0, np.int64),
            "position": single(0, np.int64),
            **{f"cache_{index}": np.zeros(cells, np.float32) for index in range(2 * pair[0])},
            "value": np.zeros((*pair, *heads), np.float32),
            "log_n": single(0.0),
            "start": np.ones((2, manifest.width), np.float32),
            "noise": np.zeros(manifest.vocab_size, np.float32),
            "temperature": single(1.0),
            "guidance": single(1.0),
            "top_k": single(0, np.int64),
            "score": single(0, np.int64),
            "threshold": single(0.25),
        }
        if any(each.name == SKETCH for each in graph.input):
            self.inputs[SKETCH] = np.zeros((manifest.tokens, manifest.width), np.float32)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            self.content, options, providers=["CPUExecutionProvider"]
        )

    @property
    def score_names(self) -> tuple[str, ...]:
        """The scores that the shipped graph gives; an older one has fewer."""
        sizes = {each.name: each.shape[-1] for each in self.session.get_outputs()}
        return SCORE_NAMES[: sizes["scores"]]

    @property
    def codes(self) -> Double:
        return self.weights["codes"]

    def start(self, seed: int, scale: float) -> NDArray[np.float32]:
        """Hidden states [2, D] whose logits have a standard deviation of `scale`."""
        rng = np.random.default_rng(seed)
        start = rng.normal(size=self.inputs["start"].shape)
        size = self.logits(start).std(axis=-1, keepdims=True)
        scaled: NDArray[np.float32] = (start * scale / size).astype(np.float32)
        return scaled

    def run(self, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        names = ["drawn", "scores", "feature", "hidden"]
        return dict(zip(names, self.session.run(names, self.inputs | inputs), strict=True))

    def logits(self, start: Floats) -> Double:
        return start.astype(np.float64) @ self.weights["head.center.weight"].T

    def interval(self, start: Floats, guidance: float) -> Interval:
        """The interval [1, V] that hidden states [2, D] give, in float64."""
        center = self.logits(start)
        narrow = start[:1].astype(np.float64) @ self.weights["head.radius_down.weight"].T
        raw = narrow @ self.weights["head.radius_up.weight"].T + self.weights["head.radius_up.bias"]
        radius = np.minimum(np.logaddexp(0, raw), MAX_RADIUS)
        return interval_softmax(guide(center[:1], center[1:], guidance), radius)


@pytest.fixture(scope="module")
def step() -> Step:
    path = reference_path()
    if not (path / DEVICE_FOLDER).exists():
        pytest.skip("the reference family is not in this checkout")
    return Step(Bundle.open(path / DEVICE_FOLDER, path / PUBLIC_KEY))


def test_the_shipped_step_uses_every_one_of_its_inputs(step: Step) -> None:
    graph = onnx.load_from_string(step.content).graph

    used = {name for node in graph.node for name in node.input}

    assert [each.name for each in graph.input if each.name not in used] == []


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0, 20.0])
def test_onnx_agrees_on_scores_and_features(step: Step, scale: float, guidance: float) -> None:
    for seed in range(10):
        start = step.start(seed, scale)
        interval = step.interval(start, guidance)
        name = step.score_names[seed % len(step.score_names)]

        said = step.run(
            start=start,
            guidance=single(guidance),
            score=single(SCORE_NAMES.index(name), np.int64),
            noise=gumbel(seed, np.arange(1), SYMBOLS)[0],
        )

        scores = expected_scores(interval, step.codes)[0]
        margin = scores[SCORE_NAMES.index(name)] - 0.25
        scalars = expected_scalars(interval, said["drawn"], margin)[0]
        given = len(step.score_names)
        np.testing.assert_allclose(said["scores"], scores[:given], rtol=3e-4, atol=2e-6)
        np.testing.assert_allclose(said["feature"][:FEATURE_SCALARS], scalars, **GRAPH_CLOSE)
        projected = step.weights["projection.project.weight"] @ start[0]
        np.testing.assert_allclose(said["feature"][FEATURE_SCALARS:], projected, atol=1e-4)
        np.testing.assert_array_equal(said["hidden"], start[0])
        assert said["feature"].shape == (FEATURE_SIZE,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_broken_hidden_state_gives_no_finite_score_in_onnx(step: Step, bad: float) -> None:
    for column in (0, slice(None)):
        start = step.start(1, 3.0)
        start[0, column] = bad

        for guidance in (1.0, 3.0):
            said = step.run(start=start, guidance=single(guidance))
            assert not np.isfinite(said["scores"]).any()


@pytest.mark.parametrize("threshold", [np.inf, -np.inf])
def test_an_infinite_threshold_leaves_no_margin_in_onnx(step: Step, threshold: float) -> None:
    feature = step.run(threshold=single(threshold))["feature"]

    assert feature[14] == 0
    assert np.isfinite(feature).all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1, top_k=0, guidance=1),
        Sampling(temperature=0.7, top_k=20, guidance=1),
        Sampling(temperature=1.3, top_k=1024, guidance=4),
        Sampling(temperature=1, top_k=1, guidance=2),
    ],
)
def test_onnx_draws_the_token_that_numpy_draws(step: Step, sampling: Sampling) -> None:
    noise = gumbel(5, np.arange(50), SYMBOLS)
    agreed = 0
    for row in range(50):
        start = step.start(row, 3.0)

        drawn = step.run(
            start=start,
            noise=noise[row],
            temperature=single(sampling.temperature),
            guidance=single(sampling.guidance),
            top_k=single(sampling.top_k, np.int64),
        )["drawn"]

        logits = step.logits(start).astype(np.float32)
        guided = guide(logits[0], logits[1], sampling.guidance)
        agreed += int(drawn[0]) == int(draw(sharpen(guided, sampling), noise[row]))
    assert agreed == 50
