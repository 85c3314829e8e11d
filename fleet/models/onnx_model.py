"""The device model and the image decoder on onnxruntime, without torch."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from fleet.decoding.accept import Policy
from fleet.errors import BundleError, InvalidInputError
from fleet.models.bundle import (
    CAPTION_GRAPH,
    DECODER_GRAPH,
    STEP_GRAPH,
    VOCABULARY,
    Bundle,
    Manifest,
)
from fleet.models.caption import PAD, UNKNOWN, CaptionVocabulary, pad_left
from fleet.models.picture_noise import PictureNoise
from fleet.prediction import SCORE_NAMES, Prediction
from fleet.protocol.condition import SentCondition
from fleet.protocol.messages import Sampling

Floats = NDArray[np.float32]

_STEP_OUTPUTS = ("rows", "drawn", "scores", "feature", "hidden")
# Also there, and computed out only where somebody needs them: fields of `Prediction`.
Extra = Literal["logits", "guided_hidden"]


@dataclass(slots=True, eq=False)
class DeviceState:
    """One picture on the device: its condition, its cache and its noise, all allocated at once.

    Attributes:
        cache: [L, 2 (keys, values), 2 (with and without caption), H, T, head_dim].
        noise: The shared Gumbel noise [V] of the picture's seed, by position.
        filled: How many cells hold the rows of the picture's tokens.
        inputs: Of the step graph: what stays the same for the whole picture, views of `cache`
            (keys and values of each layer), and arrays that each step writes its own numbers into.
        extras: What the step graph is asked for beyond what every picture needs.
    """

    cache: Floats
    noise: PictureNoise
    inputs: dict[str, NDArray[np.generic]]
    extras: tuple[Extra, ...] = ()
    filled: int = field(default=0)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModel:
    """The device model of a bundle; holds no picture, so one serves any number of them in turn."""

    manifest: Manifest
    vocabulary: CaptionVocabulary  # of nothing, where the hub reads captions
    _caption: onnxruntime.InferenceSession | None
    _step: onnxruntime.InferenceSession

    @classmethod
    def load(cls, bundle: Bundle, threads: int = 1) -> "DeviceModel":
        """Read vocabulary and graphs of a bundle.

        Raises:
            BundleError: A graph is not one that the runtime reads.
        """
        step = _session(bundle, STEP_GRAPH, threads)
        if bundle.manifest.condition == "hub":
            return cls(bundle.manifest, CaptionVocabulary((PAD, UNKNOWN)), None, step)
        return cls(
            bundle.manifest,
            CaptionVocabulary(tuple(json.loads(bundle.read(VOCABULARY))["words"])),
            _session(bundle, CAPTION_GRAPH),
            step,
        )

    def begin(
        self,
        caption: Sequence[int] | SentCondition,
        *,
        seed: int,
        sampling: Sampling,
        policy: Policy,
        extras: tuple[Extra, ...] = (),
    ) -> DeviceState:
        """Begin a picture.

        Args:
            caption: Its word ids, as `vocabulary.encode` returns them, or what the hub told of it.
            seed: Of the noise that device and cloud share.
            sampling: How logits become a law.
            policy: Whose score and threshold the feature's margin is made of.
            extras: What predictions shall hold beyond what the policy needs.

        Raises:
            InvalidInputError: The bundle's graph does not give what is asked for.
        """
        manifest, score = self.manifest, self._score_index(policy)
        if policy.score == "perturbation" and "logits" not in extras:
            extras = (*extras, "logits")
        for name in extras:
            self._check_output(name)
        shape = (manifest.layers, 2, 2, manifest.heads, manifest.tokens, manifest.head_dim)
        cache = np.zeros(shape, np.float32)
        return DeviceState(
            cache=cache,
            noise=PictureNoise(seed, manifest.tokens, manifest.vocab_size),
            inputs={
                **{f"cache_{i}": rows for i, rows in enumerate(cache.reshape(-1, *shape[2:]))},
                **self._condition(caption),
                "temperature": np.array([sampling.temperature], np.float32),
                "guidance": np.array([sampling.guidance], np.float32),
                "top_k": np.array([sampling.top_k], np.int64),
                "score": np.array([max(score, 0)], np.int64),
                # A score from outside the graph has no margin there.
                "threshold": np.array([policy.threshold if score >= 0 else np.inf], np.float32),
                # Each step writes its own into these.
                "token": np.zeros(1, np.int64),
                "position": np.zeros(1, np.int64),
            },
            extras=extras,
        )

    def _condition(self, caption: Sequence[int] | SentCondition) -> dict[str, Floats]:
        manifest = self.manifest
        if self._caption is None:
            told = caption if isinstance(caption, SentCondition) else _nothing(manifest.width)
            value = told.value.reshape(1, 2, manifest.heads, manifest.head_dim)
            log_n = np.array([told.log_n], np.float32)
            return {"value": value, "log_n": log_n, "start": told.state}
        if isinstance(caption, SentCondition):
            raise InvalidInputError("this bundle reads captions by its own words")
        words = np.array(pad_left(caption, manifest.caption_positions), np.int64)
        names = [output.name for output in self._caption.get_outputs()]
        return dict(zip(names, self._caption.run(names, {"caption": words}), strict=True))

    def with_step_graph(self, graph: bytes, threads: int = 1) -> "DeviceModel":
        """Return the same model with another step graph, such as a quantised one; unchecked."""
        return replace(self, _step=open_graph(graph, threads))

    def bare_step(self, state: DeviceState) -> Callable[[int], None]:
        """Return a function that only runs the graph at a position: what a step costs at least."""
        inputs = {**state.inputs, "noise": state.noise[0]}
        outputs = [*_STEP_OUTPUTS, *state.extras]

        def run(position: int) -> None:
            inputs["position"][0] = position
            self._step.run(outputs, inputs)

        return run

    def bound_step(self, state: DeviceState) -> Callable[[int], None]:
        """Return what `bare_step` does, with inputs and outputs bound once to their memory."""
        inputs = {**state.inputs, "noise": state.noise[0]}
        binding = self._step.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        for name in (*_STEP_OUTPUTS, *state.extras):
            binding.bind_output(name)

        def run(position: int) -> None:
            inputs["position"][0] = position
            self._step.run_with_iobinding(binding)
            binding.get_outputs()

        return run

    def step(self, state: DeviceState, position: int, token: int) -> Prediction:
        """Draft the token at `position` after the token before it.

        Positions go up one by one. To roll back, step at an earlier position with the token
        that now precedes it: what lies behind is not read and will be overwritten.

        Args:
            state: The picture; its cache gets the rows of `token`.
            position: 0 to T - 1.
            token: The picture's token at position - 1; ignored at position 0.

        Raises:
            InvalidInputError: A position was left out.
        """
        if not 0 <= position <= min(state.filled + 1, self.manifest.tokens - 1):
            raise InvalidInputError(
                f"position {position} cannot follow {state.filled} tokens of"
                f" {self.manifest.tokens}: step through all positions before it"
            )
        inputs = state.inputs
        inputs["token"][0], inputs["position"][0] = token, position
        inputs["noise"] = state.noise[position]
        rows, drawn, scores, feature, hidden, *more = self._step.run(
            [*_STEP_OUTPUTS, *state.extras], inputs
        )
        if position > 0:
            state.cache[..., position - 1, :] = rows
        state.filled = position
        if not more:
            return Prediction(position, int(drawn[0]), scores, feature, hidden)
        extras = dict(zip(state.extras, more, strict=True))
        return Prediction(position, int(drawn[0]), scores, feature, hidden, **extras)

    def _score_index(self, policy: Policy) -> int:
        """The policy's score among those of the graph, -1 if it comes from elsewhere."""
        if policy.score not in SCORE_NAMES:
            return -1
        index = SCORE_NAMES.index(policy.score)
        given = _output_size(self._step, "scores")
        if index >= given:
            raise InvalidInputError(
                f"this bundle's graph gives no score {policy.score!r}, only"
                f" {', '.join(SCORE_NAMES[:given])}: take one of them, or export the bundle again"
            )
        return index

    def gives(self, name: Extra) -> bool:
        """Whether the bundle's graph has this output."""
        return _output_size(self._step, name) > 0

    def _check_output(self, name: Extra) -> None:
        if not self.gives(name):
            raise InvalidInputError(
                f"this bundle's graph does not give its {name}, which this policy, verification"
                " rule or training needs: do without, or export the bundle again"
            )

    def replay(self, state: DeviceState, tokens: Sequence[int]) -> None:
        """Put the picture's first tokens into the cache, so that the next one can be drafted."""
        for position, token in enumerate(tokens[:-1], start=1):
            self.step(state, position, token)


def _nothing(width: int) -> SentCondition:
    """What a self-test draws of."""
    zeros = np.zeros((2, width), np.float32)
    return SentCondition(zeros, 0.0, zeros)


def open_graph(content: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A graph ready to run, as a device runs it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True, slots=True, eq=False)
class ImageDecoder:
    """The image tokenizer's decoder."""

    manifest: Manifest
    _session: onnxruntime.InferenceSession

    @classmethod
    def load(cls, bundle: Bundle) -> "ImageDecoder":
        """Read the decoder of a bundle.

        Raises:
            BundleError: The graph is not one that the runtime reads.
        """
        return cls(bundle.manifest, _session(bundle, DECODER_GRAPH))

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the picture [size, size, 3] of all its tokens [T].

        Raises:
            InvalidInputError: There are more or fewer tokens, or one is not a code.
        """
        manifest = self.manifest
        if tokens.shape != (manifest.tokens,):
            raise InvalidInputError(f"a picture has {manifest.tokens} tokens, not {tokens.shape}")
        if tokens.min() < 0 or tokens.max() >= manifest.vocab_size:
            raise InvalidInputError(f"a token lies between 0 and {manifest.vocab_size - 1}")
        picture: NDArray[np.uint8] = self._session.run(["picture"], {"tokens": tokens})[0]
        return picture


def _output_size(session: onnxruntime.InferenceSession, name: str) -> int:
    """The length of an output, 0 if the graph has none of that name."""
    shapes = {each.name: each.shape for each in session.get_outputs()}
    return int(shapes[name][-1]) if name in shapes else 0


def _session(bundle: Bundle, name: str, threads: int = 1) -> onnxruntime.InferenceSession:
    with _bundle_errors(bundle, name):
        return open_graph(bundle.read(name), threads)


@contextmanager
def _bundle_errors(bundle: Bundle, name: str) -> Iterator[None]:
    try:
        yield
    except BundleError:
        raise
    except Exception as error:
        raise BundleError(f"{bundle.path / name} is not a graph that runs here: {error}") from error
