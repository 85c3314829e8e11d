"""The token model computes what LlamaGen does, and its ways of decoding agree."""

import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fleet.models.conditions import Condition
from fleet.models.transformer import Transformer, TransformerConfig, guide

CONFIG = TransformerConfig(
    n_layer=2,
    n_head=2,
    dim=16,
    ffn=24,
    vocab_size=11,
    grid=4,
    n_word=9,
    sketch_slots=3,
    sketch_width=3,
)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    model = Transformer(CONFIG).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.5)
    return model.requires_grad_(False)


@pytest.fixture
def captions() -> Tensor:
    captions = torch.zeros(2, 16, dtype=torch.long)
    captions[0, -3:] = torch.tensor([2, 3, 4])
    captions[1, -5:] = torch.tensor([2, 8, 1, 7, 5])
    return captions


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, 11, (2, 15), generator=torch.Generator().manual_seed(1))


def decode(model: Transformer, tokens: Tensor, condition: Condition, sizes: list[int]) -> Tensor:
    """Return the hidden states of all positions, computed in spans of the given sizes."""
    config = model.config
    past = torch.zeros(config.n_layer, 2, len(tokens), config.n_head, 0, config.head_dim)
    hidden = [condition.start[:, None]]
    for part in tokens.split(sizes, dim=1):
        spanned, rows = model.span(part, past, condition)
        past = torch.cat([past, rows], dim=4)
        hidden.append(spanned)
    return torch.cat(hidden, dim=1)


@pytest.mark.parametrize("weight", [1, 5])
def test_the_collapsed_caption_equals_the_whole_prefix(
    model: Transformer, tokens: Tensor, captions: Tensor, weight: int
) -> None:
    model.config = replace(CONFIG, caption_weight=weight)
    expected, _ = model(tokens, captions)

    actual = decode(model, tokens, model.condition(captions), [15])

    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_a_captions_weight_is_seen_by_the_image_and_not_by_the_caption(
    model: Transformer, tokens: Tensor, captions: Tensor
) -> None:
    once, one = model.condition(captions), model(tokens, captions)[0]

    model.config = replace(CONFIG, caption_weight=5)

    often, five = model.condition(captions), model(tokens, captions)[0]
    torch.testing.assert_close(often.log_n, once.log_n + math.log(5))
    assert torch.equal(often.value, once.value)
    assert torch.equal(often.start, once.start)
    assert (five - one)[:, 1:].abs().max() > 0.1


def test_chunks_equal_single_tokens(model: Transformer, tokens: Tensor, captions: Tensor) -> None:
    condition = model.condition(captions)

    chunks = decode(model, tokens, condition, [4, 1, 10])
    singles = decode(model, tokens, condition, [1] * 15)

    torch.testing.assert_close(chunks, singles, atol=1e-5, rtol=1e-5)


def test_without_caption_the_length_still_counts(model: Transformer, captions: Tensor) -> None:
    withheld = torch.tensor([True, True])

    start = model.condition(captions, withheld).start

    assert not torch.allclose(start[0], start[1])


def test_the_identity_rotation_of_captions_gives_other_logits(
    model: Transformer, tokens: Tensor, captions: Tensor
) -> None:
    _, expected = model(tokens, captions)

    model.rotation[: CONFIG.caption_length, :, 0] = 1.0

    _, actual = model(tokens, captions)
    assert (actual - expected).abs().max() > 0.1


def test_a_zero_input_feature_changes_no_bit(
    model: Transformer, tokens: Tensor, captions: Tensor
) -> None:
    _, without = model(tokens, captions)
    _, with_zeros = model(tokens, captions, None, torch.zeros(2, 15, CONFIG.dim))

    assert torch.equal(without, with_zeros)


def test_padding_content_has_no_influence(model: Transformer, tokens: Tensor) -> None:
    valid = torch.arange(16)[None].expand(2, -1) >= 12
    features = torch.randn(2, 16, CONFIG.caption_dim)
    _, expected = model.forward_features(tokens, features, valid)

    features[:, :12] = 100.0

    assert torch.equal(model.forward_features(tokens, features, valid)[1], expected)


@pytest.mark.parametrize("guidance", [0.0, 0.5, 1.0])
def test_guidance_of_at_most_one_is_the_conditional_law(guidance: float) -> None:
    conditional, unconditional = torch.randn(2, 5)

    assert torch.equal(guide(conditional, unconditional, guidance), conditional)


# Logits of an independent float64 implementation with the weights and inputs below.
LLAMAGEN_CONDITIONAL = (-0.733291, 0.7367573, 0.3691122, 4.446238, -1.865629)
LLAMAGEN_UNCONDITIONAL = (-1.180611, 3.429232, 1.726957, 1.574524, 2.153253)


def llamagen_weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the weight any implementation can make from its name alone."""
    state = np.random.RandomState((1234 + zlib.crc32(name.encode())) % 2**32)
    values = state.standard_normal(shape)
    if name.endswith("norm.weight"):
        values = 1 + 0.1 * values
    elif name == "output.weight":
        values = 0.3 * values
    elif name == "tok_embeddings.weight":
        values = 0.5 * values
    else:
        values = values / shape[-1] ** 0.5
    return torch.from_numpy(values).float()


@pytest.mark.parametrize(
    ("withheld", "expected"), [(False, LLAMAGEN_CONDITIONAL), (True, LLAMAGEN_UNCONDITIONAL)]
)
def test_logits_are_those_of_llamagen(withheld: bool, expected: tuple[float, ...]) -> None:
    config = TransformerConfig(2, 4, 64, 192, 97, 4, n_word=0, caption_length=120, caption_dim=24)
    model = Transformer(config).eval()
    state = model.state_dict()
    model.load_state_dict({k: llamagen_weight(k, tuple(v.shape)) for k, v in state.items()})
    tokens = torch.from_numpy(np.random.RandomState(7).randint(0, 97, (2, 16)))
    features = np.random.RandomState(11).standard_normal((2, 120, 24))
    padded, valid = torch.zeros(2, 120, 24), torch.zeros(2, 120, dtype=torch.bool)
    for row, count in enumerate((4, 2)):
        padded[row, -count:] = torch.from_numpy(features[row, :count]).float()
        valid[row, -count:] = True

    chosen = torch.tensor([withheld, withheld])
    with torch.no_grad():
        _, logits = model.forward_features(tokens[:, :15], padded, valid, chosen)

    assert logits.shape == (2, 16, 97)
    torch.testing.assert_close(logits[0, 0, :5], torch.tensor(expected), atol=2e-5, rtol=0)
