"""The cloud model gives, span by span, the laws of its transformer and its interval feature."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fleet.errors import BundleError
from fleet.ids import ModelVersion
from fleet.models.bundle import VOCABULARY
from fleet.models.caption import pad_left
from fleet.models.interval_feature import IntervalFeature
from fleet.models.span_cache import KVCache, Span
from fleet.models.spans import SpanEngine
from fleet.models.torch_model import CLOUD_FILES, CONFIG, TRANSFORMER, CloudModel
from fleet.models.transformer import Transformer, TransformerConfig

CONFIGURATION = TransformerConfig(
    n_layer=2,
    n_head=2,
    dim=32,
    ffn=64,
    vocab_size=61,
    grid=5,
    n_word=20,
    caption_dim=16,
    sketch_slots=3,
    sketch_width=3,
)
WORDS = [4, 9, 2]
TOKENS = np.random.default_rng(5).integers(0, 61, CONFIGURATION.n_token)
FEATURES = np.random.default_rng(6).integers(-127, 128, (CONFIGURATION.n_token, 48), np.int8)


def make_model() -> CloudModel:
    torch.manual_seed(3)
    transformer, feature = Transformer(CONFIGURATION), IntervalFeature(CONFIGURATION.dim)
    for parameter in [*transformer.parameters(), *feature.parameters()]:
        torch.nn.init.normal_(parameter, std=0.3)
    feature.scale.fill_(0.02)
    return CloudModel("tiny", ModelVersion("v"), SpanEngine(transformer), feature.eval())


MODEL = make_model()


def begin() -> tuple[KVCache, Tensor]:
    cache, condition = MODEL.new_cache(2), MODEL.condition_pair(WORDS)
    cache.begin(0, condition, 0)
    cache.begin(1, condition, 1)
    return cache, MODEL.start_logits(condition)


def pair(start: int, end: int, features: bool = False) -> list[Span]:
    own = FEATURES[start:end] if features else None
    return [Span(row, start, TOKENS[start:end], own) for row in (0, 1)]


@torch.inference_mode()
def reference(added: Tensor | None = None) -> Tensor:
    """Return logits [2, T + 1, V] with the caption and without it."""
    captions = torch.tensor([pad_left(WORDS)] * 2)
    tokens = torch.from_numpy(np.stack([TOKENS] * 2))
    withheld = torch.tensor([False, True])
    _, logits = MODEL.engine.transformer(tokens, captions, withheld, added)
    return torch.as_tensor(logits)


def test_the_first_law_is_the_conditions() -> None:
    _, start = begin()

    torch.testing.assert_close(start, reference()[:, 0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("width", [1, 3, 8, 25])
def test_both_branches_equal_the_whole_picture_at_once(width: int) -> None:
    cache, _ = begin()

    parts = []
    for start in range(0, len(TOKENS), width):
        end = min(start + width, len(TOKENS))
        parts.append(MODEL.forward_spans(cache, pair(start, end)).view(2, end - start, -1))

    torch.testing.assert_close(torch.cat(parts, dim=1), reference()[:, 1:], atol=1e-4, rtol=0)


@pytest.mark.parametrize("width", [1, 4, 25])
def test_features_add_to_their_tokens(width: int) -> None:
    cache, _ = begin()
    with torch.inference_mode():
        added = MODEL.interval_feature(torch.from_numpy(FEATURES).float() * 0.02)

    parts = []
    for start in range(0, len(TOKENS), width):
        end = min(start + width, len(TOKENS))
        found = MODEL.forward_spans(cache, pair(start, end, features=True))
        parts.append(found.view(2, end - start, -1))

    expected = reference(added.expand(2, -1, -1))
    torch.testing.assert_close(torch.cat(parts, dim=1), expected[:, 1:], atol=1e-4, rtol=0)
    assert (expected - reference()).abs().max() > 0.1


def test_features_of_zero_change_no_bit() -> None:
    plain, zero = begin()[0], begin()[0]
    nothing = np.zeros((9, 48), np.int8)

    expected = MODEL.forward_spans(plain, pair(0, 9))
    found = MODEL.forward_spans(zero, [Span(row, 0, TOKENS[:9], nothing) for row in (0, 1)])

    assert torch.equal(found, expected)


def test_a_neighbours_features_change_no_bit() -> None:
    alone, together = begin()[0], begin()[0]

    expected = MODEL.forward_spans(alone, pair(0, 9)[:1])
    mixed = [Span(0, 0, TOKENS[:9]), Span(1, 0, TOKENS[:9], FEATURES[:9])]
    found = MODEL.forward_spans(together, mixed)

    assert torch.equal(found[:9], expected)


def test_the_withheld_branch_depends_on_the_captions_length() -> None:
    short, long = (MODEL.start_logits(MODEL.condition_pair(w)) for w in ([4], [4, 9, 2]))

    assert not torch.allclose(short[1], long[1], atol=1e-2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"config\.json cannot be read"):
        CloudModel.load(tmp_path)


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    for name in CLOUD_FILES:
        (tmp_path / name).write_bytes(b"{}")
    (tmp_path / CONFIG).write_text('{"format": "ciar-cloud-9"}')

    with pytest.raises(BundleError, match=r"'ciar-cloud-9'; this release reads 'ciar-cloud-1'"):
        CloudModel.load(tmp_path)


def test_weights_that_are_none_are_named(tmp_path: Path) -> None:
    config = {"format": "ciar-cloud-1", "family": "x", "transformer": asdict(CONFIGURATION)}
    for name in (*CLOUD_FILES, VOCABULARY):
        (tmp_path / name).write_bytes(b"not safetensors at all")
    (tmp_path / CONFIG).write_text(json.dumps(config))

    with pytest.raises(BundleError, match=f"{TRANSFORMER} does not hold the weights"):
        CloudModel.load(tmp_path)
