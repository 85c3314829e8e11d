"""The cloud model in torch: captions to conditions, spans of tokens to logits."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fleet.errors import BundleError, FleetError
from fleet.ids import ModelVersion
from fleet.models.bundle import VOCABULARY, content_version
from fleet.models.caption import pad_left
from fleet.models.checkpoint import load_weights
from fleet.models.conditions import Condition, Prompt
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.interval_feature import IntervalFeature
from fleet.models.signing import read_file
from fleet.models.span_cache import KVCache, Precision, Span
from fleet.models.spans import SpanEngine
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.protocol.arrays import FEATURE_BYTES

CLOUD_FORMAT = "ciar-cloud-1"
CONFIG = "config.json"
TRANSFORMER = "cloud.safetensors"
INTERVAL_FEATURE = "interval_feature.safetensors"
IMAGE_TOKENIZER = "image_tokenizer.safetensors"
CLOUD_FILES = (CONFIG, TRANSFORMER, INTERVAL_FEATURE, IMAGE_TOKENIZER, VOCABULARY)


@dataclass(frozen=True, slots=True, eq=False)
class CloudModel:
    """The cloud's token model with its interval feature; stored in fp16, computed in fp32.

    It holds no lock and no picture: one thread at a time calls it, and the caches are the
    caller's.
    """

    family: str
    version: ModelVersion
    engine: SpanEngine
    interval_feature: IntervalFeature

    @classmethod
    def load(cls, path: Path, device: str = "cpu", precision: Precision = "fp16") -> "CloudModel":
        """Read the model from its folder; `precision` is that of its products.

        Raises:
            BundleError: A file is missing, or is not what its name says.
        """
        contents = {name: read_file(path / name) for name in CLOUD_FILES}
        config = read_config(path, contents[CONFIG])
        transformer = Transformer(TransformerConfig(**config["transformer"]))
        feature = IntervalFeature(transformer.config.dim)
        _fill(path / TRANSFORMER, contents[TRANSFORMER], transformer)
        _fill(path / INTERVAL_FEATURE, contents[INTERVAL_FEATURE], feature)
        engine = SpanEngine(transformer.to(device), precision=precision)
        return cls(config["family"], content_version(contents), engine, feature.to(device).eval())

    @property
    def vocab_size(self) -> int:
        """The number of codes."""
        return self.engine.config.vocab_size

    @property
    def tokens(self) -> int:
        """The number of tokens of a picture."""
        return self.engine.config.n_token

    @property
    def caption_positions(self) -> int:
        """The number of words that fit in a caption."""
        return self.engine.config.caption_length

    @property
    def cache_row_bytes(self) -> int:
        """The memory of one cache row; a guided picture takes two rows."""
        return self.new_cache(1).nbytes

    def new_cache(self, rows: int) -> KVCache:
        """Return a cache for `rows` rows, all of its memory taken now."""
        return self.engine.new_cache(rows)

    @torch.inference_mode()
    def condition(
        self, captions: NDArray[np.int64], withheld: NDArray[np.bool_] | None = None
    ) -> Condition:
        """Collapse captions to what decoding needs of them.

        The condition of a withheld caption still depends on how many words it has, so both
        branches of a guided picture come from one caption: see `condition_pair`.

        Args:
            captions: [B, caption positions], word ids padded on the left.
            withheld: [B], where the caption is withheld (the unconditional branch of guidance).
        """
        device = self.engine.device
        hidden = None if withheld is None else torch.from_numpy(withheld).to(device)
        return self.engine.transformer.condition(torch.from_numpy(captions).to(device), hidden)

    def condition_pair(self, words: Sequence[int]) -> Condition | Prompt:
        """Collapse one caption twice: row 0 with it, row 1 with it withheld."""
        padded = np.array([pad_left(words, self.caption_positions)] * 2, np.int64)
        return self.condition(padded, np.array([False, True]))

    def told(self, condition: Condition | Prompt) -> bytes:  # noqa: ARG002 - others tell
        """Return what a device is told of a pair's caption; nothing where it reads words itself."""
        return b""

    def start_logits(self, condition: Condition | Prompt) -> Tensor:
        """Return the logits [B, V] of position 0."""
        return self.engine.logits(condition.start)

    def forward_spans(
        self, cache: KVCache, spans: Sequence[Span], embedded: Tensor | None = None
    ) -> Tensor:
        """Run spans of any lengths and pictures in one pass.

        Row i of a span predicts position start + i + 1; its token and all before must be the
        picture's. In torch, spans of rows equally far apart attend together, so pass them in row
        order, both rows of a guided picture side by side.

        Args:
            cache: Whose rows `KVCache.begin` has given their conditions.
            spans: At most one a row.
            embedded: What `embed_spans` made of them, if it was called before; overwritten.

        Returns:
            Logits [N, V], fp32, over all spans' tokens in order.
        """
        x = self.embed_spans(spans) if embedded is None else embedded
        return self.engine.logits(self.engine.run(cache, spans, x))

    def embed_spans(self, spans: Sequence[Span]) -> Tensor:
        """Return the embeddings of all spans' tokens and features, which no cache has a part in."""
        return self.engine.embed(spans, self._added(spans))

    @torch.inference_mode()
    def _added(self, spans: Sequence[Span]) -> Tensor | None:
        if all(span.features is None for span in spans):
            return None
        rows = [
            np.zeros((len(span.tokens), FEATURE_BYTES), np.int8)
            if span.features is None
            else span.features
            for span in spans
        ]
        steps = torch.from_numpy(np.concatenate(rows)).to(self.engine.device)
        added: Tensor = self.interval_feature(steps.float() * self.interval_feature.scale)
        return added


def load_image_tokenizer(path: Path) -> ImageTokenizer:
    """Read the image tokenizer from the cloud model's folder.

    Raises:
        BundleError: A file is missing, or is not what its name says.
    """
    config = dict(read_config(path, read_file(path / CONFIG))["image_tokenizer"])
    config["channel_multipliers"] = tuple(config["channel_multipliers"])
    tokenizer = ImageTokenizer(ImageTokenizerConfig(**config))
    _fill(path / IMAGE_TOKENIZER, read_file(path / IMAGE_TOKENIZER), tokenizer)
    return tokenizer.eval()


def read_config(path: Path, text: bytes) -> dict[str, Any]:
    """Return the cloud model's configuration, as `config.json` holds it.

    Raises:
        BundleError: The text is not a configuration that this release reads.
    """
    try:
        config: dict[str, Any] = json.loads(text)
        found = config.get("format")
    except (ValueError, AttributeError) as error:
        raise BundleError(f"{path / CONFIG} is not a cloud model's configuration") from error
    if found != CLOUD_FORMAT:
        raise BundleError(
            f"{path / CONFIG} is of format {found!r}; this release reads {CLOUD_FORMAT!r}"
        )
    return config


def _fill(path: Path, content: bytes, module: torch.nn.Module) -> None:
    try:
        weights = {name: value.float() for name, value in load(content).items()}
        load_weights(module, weights)
    except (SafetensorError, FleetError) as error:
        raise BundleError(f"{path} does not hold the weights it should: {error}") from error
