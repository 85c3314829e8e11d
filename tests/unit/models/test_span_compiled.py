"""Compiled layers: the numbers of the transformer, and no bit depends on cut, company, threads."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor, nn

from fleet.models import span_kernels as kernels
from fleet.models import spans
from fleet.models.span_cache import Span
from fleet.models.span_compiled import packed
from fleet.models.span_torch import TorchLayers
from fleet.models.spans import SpanEngine
from fleet.models.transformer import Transformer, TransformerConfig
from tests.unit.models.test_spans import CAPTIONS, CONFIG, PICTURE_TOKENS, TOKENS


def model(config: TransformerConfig = CONFIG) -> Transformer:
    """One whose weights fp16 holds."""
    torch.manual_seed(3)
    made = Transformer(config)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.2)
        parameter.data = parameter.data.half().float()
    return made


@pytest.fixture(scope="module")
def engine() -> SpanEngine:
    return SpanEngine(model())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def states(engine: SpanEngine, width: int, company: int = 0) -> Tensor:
    """The hidden states [T, D] of a picture in spans of `width`, beside others in each pass."""
    rows = 1 + company
    cache = engine.new_cache(rows)
    condition = engine.transformer.condition(CAPTIONS)
    for row in range(rows):
        cache.begin(row, condition, row % 3)
    found = []
    for start in range(0, TOKENS, width):
        end = min(start + width, TOKENS)
        made = [Span(row, start, PICTURE_TOKENS[row % 3, start:end]) for row in range(rows)]
        found.append(engine.run(cache, made)[: end - start])
    return torch.cat(found)


@pytest.mark.parametrize("outputs", [64, 50, 130])
@pytest.mark.parametrize("count", [1, 5, 6, 67])
def test_a_product_is_the_layer_s_to_the_bit_in_any_number_of_rows(
    outputs: int, count: int
) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(72, outputs, bias=False), torch.randn(count, 72)
    layer.weight.data = layer.weight.data.half().float()
    found, alone = (np.full((count, outputs), np.nan, np.float32) for _ in range(2))

    kernels.multiply(x.numpy(), packed(layer), found)
    for row in range(count):
        kernels.multiply(x[row : row + 1].numpy(), packed(layer), alone[row : row + 1])

    np.testing.assert_allclose(found, layer(x).detach().numpy(), atol=2e-5)
    np.testing.assert_array_equal(found, alone)


def test_numbers_are_the_transformer_s(engine: SpanEngine) -> None:
    with torch.inference_mode():
        hidden, _ = engine.transformer(torch.from_numpy(PICTURE_TOKENS[:1]), CAPTIONS[:1])
        expected = engine.transformer.output(hidden[0, 1:])

    found = states(engine, TOKENS)

    torch.testing.assert_close(found, hidden[0, 1:], atol=2e-5, rtol=0)
    torch.testing.assert_close(engine.logits(found), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("width", "company"), [(1, 0), (3, 0), (1, 6), (7, 2), (TOKENS, 5)])
def test_neither_a_cut_nor_company_changes_a_bit(
    engine: SpanEngine, width: int, company: int
) -> None:
    assert torch.equal(states(engine, width, company), states(engine, TOKENS))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("width", "company"), [(TOKENS, 0), (TOKENS, 2), (1, 40), (5, 7)])
def test_threads_change_no_bit(engine: SpanEngine, width: int, company: int) -> None:
    found = states(engine, width, company)
    laws = engine.logits(found)

    torch.set_num_threads(1)
    assert torch.equal(found, states(engine, width, company))
    assert torch.equal(laws, engine.logits(found))


def test_a_rollback_is_an_earlier_start(engine: SpanEngine) -> None:
    cache = engine.new_cache(1)
    cache.begin(0, engine.transformer.condition(CAPTIONS), 0)
    engine.run(cache, [Span(0, 0, PICTURE_TOKENS[0, :8])])
    engine.run(cache, [Span(0, 8, (PICTURE_TOKENS[0, 8:20] + 1) % 61)])

    again = engine.run(cache, [Span(0, 8, PICTURE_TOKENS[0, 8:20])])

    assert torch.equal(again, states(engine, TOKENS)[8:20])


def test_a_row_s_last_picture_changes_no_bit(engine: SpanEngine) -> None:
    cache = engine.new_cache(1)
    for cells in (cache.keys, cache.values):
        cells.fill_(float("nan"))
    cache.begin(0, engine.transformer.condition(CAPTIONS), 0)

    found = engine.run(cache, [Span(0, 0, PICTURE_TOKENS[0, :9])])

    assert torch.equal(found, states(engine, TOKENS)[:9])


@pytest.mark.parametrize(("heads", "dim"), [(1, 48), (2, 128)])
def test_heads_of_any_sixteens_are_the_transformer_s(heads: int, dim: int) -> None:
    transformer = model(replace(CONFIG, n_head=heads, dim=dim))
    with torch.inference_mode():
        hidden, _ = transformer(torch.from_numpy(PICTURE_TOKENS[:1]), CAPTIONS[:1])

    engine = SpanEngine(transformer)

    assert is_compiled(engine)
    torch.testing.assert_close(states(engine, 5), hidden[0, 1:], atol=2e-5, rtol=0)


@pytest.mark.parametrize("count", [1, 6, 9])
def test_bf16_rounds_what_is_multiplied_and_sums_in_fp32(count: int) -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(72, 50, bias=False), torch.randn(count, 72)
    found = np.full((count, 50), np.nan, np.float32)

    kernels.multiply(x.numpy(), packed(layer, "bf16"), found)

    weight = layer.weight.detach().bfloat16().double()
    expected = x.bfloat16().double() @ weight.t()
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_pairs_are_summed_alike_with_and_without_the_processor_s_own_instruction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_HAS_PAIRS", False)
    product = kernels._products(2, 1)

    @njit
    def multiply(left: Any, right: Any, out: Any) -> None:
        product(left, (0, left.shape[1]), right, (0, 16), out, (0, 64), left.shape[1])

    torch.manual_seed(1)
    layer, x = nn.Linear(72, 64, bias=False), torch.randn(2, 72)
    panels = packed(layer, "bf16")
    expected, found = np.zeros((2, 64), np.float32), np.zeros((2, 64), np.float32)

    kernels.multiply(x.numpy(), panels, expected)
    first = np.ascontiguousarray(panels[0, :, :16])
    multiply(kernels._to_pairs(x.numpy()), first, found)

    np.testing.assert_array_equal(found[:, :16], expected[:, :16])


def test_bf16_is_close_in_both_kinds_of_layers(
    engine: SpanEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = states(engine, TOKENS)

    compiled = SpanEngine(model(), precision="bf16")
    monkeypatch.setattr(spans, "find_spec", lambda _name: None)
    plain = SpanEngine(model(), precision="bf16")

    assert is_compiled(compiled)
    assert not is_compiled(plain)
    for other in (compiled, plain):
        apart = (states(other, 5).float() - expected).abs().mean() / expected.abs().mean()
        assert 0 < apart < 0.05
    assert torch.equal(states(compiled, 5, 3), states(compiled, TOKENS))


def test_without_a_folder_for_compiled_code_it_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(*, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(kernels, "njit", nowhere)

    @kernels._compiled()
    def twice(x: Any) -> Any:
        return 2 * x

    assert twice(21) == 42


def test_what_the_kernels_cannot_give_is_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    inexact = model()
    inexact.blocks[1].feed_forward.w2.weight.data += 1e-6
    narrow, normed = model(replace(CONFIG, n_head=4)), model(replace(CONFIG, qk_norm=True))
    hidden = model(replace(CONFIG, head_hidden=64))

    assert is_compiled(SpanEngine(model()))
    for other in (inexact, narrow, normed, hidden, model().to(torch.bfloat16)):
        assert not is_compiled(SpanEngine(other))
    monkeypatch.setattr(spans, "find_spec", lambda _name: None)
    assert not is_compiled(SpanEngine(model()))


def test_torch_s_layers_are_close(engine: SpanEngine) -> None:
    plain = SpanEngine(model(), TorchLayers(model()))

    expected = states(plain, 4, 2)

    torch.testing.assert_close(states(engine, 4, 2), expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(engine.logits(expected), plain.logits(expected), atol=1e-4, rtol=0)


def is_compiled(engine: SpanEngine) -> bool:
    return engine.new_cache(1).keys.shape[-1] == kernels.LANES
