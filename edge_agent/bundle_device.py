"""The device that runs a bundle's ONNX graphs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Order
from edge_agent.drafts import Draft, States
from edge_agent.threads import fastest
from edge_agent.told import Told
from fleet.decoding.accept import START, Decision, decide, device_only, follow, score_of
from fleet.decoding.residual import law_to_send
from fleet.decoding.sampling import sharpen
from fleet.decoding.uncertainty import quantise_features
from fleet.errors import BundleError, InvalidInputError, TransportError
from fleet.models.bundle import STEP_GRAPH, Bundle, Manifest
from fleet.models.onnx_model import DeviceModel, DeviceState, Extra, ImageDecoder
from fleet.prediction import Prediction
from fleet.protocol.condition import SentCondition

_TESTED = 16  # tokens of a self-test


class BundleDevice:
    """Loads the graphs once; any number of pictures run on them, one after the other."""

    def __init__(
        self,
        bundle: Bundle,
        threads: int = 1,
        *,
        keeps_states: bool = False,
        told: Path | None = None,
    ) -> None:
        """Reads the bundle's graphs; the device step runs on `threads` threads.

        With `keeps_states` drafts carry the head's hidden states, if the graph gives them. What the
        hub tells of captions, if the bundle reads none, is kept in the folder `told`.

        Raises:
            BundleError: A file is not what was signed, or no graph that runs here.
        """
        self._manifest = bundle.manifest
        self._model = DeviceModel.load(bundle, threads)
        self._decoder = ImageDecoder.load(bundle)
        self._keeps_states = keeps_states and self._model.gives("guided_hidden")
        self._told = Told(told, bundle.manifest.cloud_version, bundle.manifest.width)
        self._scale = np.asarray(bundle.manifest.feature_scale, np.float32)

    @property
    def manifest(self) -> Manifest:
        """What the bundle says about itself."""
        return self._manifest

    @property
    def model(self) -> DeviceModel:
        """The graphs that it runs."""
        return self._model

    @property
    def size(self) -> int:
        """Tokens of a picture."""
        return self.manifest.tokens

    @property
    def vocab_size(self) -> int:
        """Codes of a token."""
        return self.manifest.vocab_size

    @property
    def keeps_states(self) -> bool:
        """Whether drafts carry hidden states."""
        return self._keeps_states

    def check(self, caption: str) -> None:
        """Raises InvalidInputError for a caption that the vocabulary does not hold."""
        if not self._asks_hub:
            self._model.vocabulary.encode(caption)
        elif not caption.strip():
            raise InvalidInputError("the caption has no words")

    def wants(self, caption: str) -> bool:
        """Whether the hub has to tell of a caption: once, for a bundle without words."""
        return self._asks_hub and self._told.get(caption) is None

    def tell(self, caption: str, condition: bytes) -> None:
        """Keeps what the hub told."""
        self._told.put(caption, condition)

    @property
    def _asks_hub(self) -> bool:
        return self.manifest.condition == "hub"

    def _caption(self, caption: str) -> Sequence[int] | SentCondition:
        if not self._asks_hub:
            return self._model.vocabulary.encode(caption)
        if (told := self._told.get(caption)) is None:
            raise TransportError(
                "this model reads captions with the hub's help, once each: draw this one with the"
                " hub first"
            )
        return told

    def begin(self, order: Order) -> "BundleDrafter":
        """Encodes the caption.

        Raises:
            TransportError: Only the hub could read the caption, and it has not.
        """
        words = self._caption(order.caption)
        logits: tuple[Extra, ...] = ("logits",) if order.rule.name == "residual" else ()
        states: tuple[Extra, ...] = ("guided_hidden",) if self._keeps_states else ()
        state = self._model.begin(
            words,
            seed=order.seed,
            sampling=order.sampling,
            policy=order.policy,
            extras=logits + states,
        )
        return BundleDrafter(self._model, state, order)

    def self_test(self) -> None:
        """Drafts the first tokens of a picture, and decodes one.

        Raises:
            BundleError: The model gives no numbers, or does not run.
        """
        manifest = self.manifest
        try:
            state = self._model.begin([], seed=0, sampling=manifest.sampling, policy=device_only())
            token = -1
            for position in range(min(_TESTED, manifest.tokens)):
                found = self._model.step(state, position, token)
                token = found.token
                sound = np.isfinite(found.hidden).all() and np.isfinite(found.scores).all()
                if not sound or not 0 <= token < manifest.vocab_size:
                    raise BundleError(f"model {manifest.device_version} gives no numbers")
            self._decoder.decode(np.zeros(manifest.tokens, np.int64))
        except BundleError:
            raise
        except Exception as error:
            raise BundleError(f"model {manifest.device_version} does not run: {error}") from error

    def quantise(self, features: NDArray[np.float32]) -> NDArray[np.int8]:
        """Interval features [k, 48] in the bundle's steps."""
        return quantise_features(features, self._scale)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The picture [side, side, 3] of all its tokens."""
        return self._decoder.decode(tokens)


def fastest_threads(bundle: Bundle, cores: int) -> int:
    """Measures the device step; takes a tenth of a second or so with a small model.

    Raises:
        BundleError: No graph that runs here.
    """
    alone, graph = DeviceModel.load(bundle), bundle.read(STEP_GRAPH)

    def stepper(threads: int) -> Callable[[], None]:
        model = alone if threads == 1 else alone.with_step_graph(graph, threads)
        manifest, policy = bundle.manifest, device_only()
        state = model.begin([], seed=0, sampling=manifest.sampling, policy=policy)
        run = model.bare_step(state)
        return lambda: run(manifest.tokens - 1)

    return fastest(stepper, cores)


class BundleDrafter:
    """One picture in the ONNX device step, with what its policy remembers of each position."""

    def __init__(self, model: DeviceModel, state: DeviceState, order: Order) -> None:
        self._model = model
        self._state = state
        self._order = order
        # What the tokens before a position leave to it. A rollback is an earlier position, so
        # what stands behind it is never read.
        self._tracks = [START] * (model.manifest.tokens + 1)

    def step(self, position: int, previous: int) -> Draft:
        """Draws the token at `position` after `previous`."""
        prediction = self._model.step(self._state, position, previous)
        policy, track = self._order.policy, self._tracks[position]
        score = score_of(prediction, policy, self._order.seed)
        uncertain = decide(policy, score, position, track) is Decision.VERIFY
        if position >= self._order.prefix_tokens:
            self._tracks[position + 1] = follow(policy, track, uncertain)
        if uncertain and self._order.rule.name == "residual" and prediction.logits is not None:
            # Drawn from the very law that will be sent.
            sent = law_to_send(sharpen(prediction.logits, self._order.sampling))
            token = sent.draw(self._state.noise[position])
            return Draft(token, score, uncertain, prediction.feature, sent, _states(prediction))
        token = prediction.token
        return Draft(token, score, uncertain, prediction.feature, states=_states(prediction))


def _states(prediction: Prediction) -> States | None:
    guided = prediction.guided_hidden
    return None if guided is None else States(prediction.hidden, guided)
