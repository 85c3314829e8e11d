"""Products of packed weights: the numbers of the layer, and no bit depends on the company."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fleet.models import span_layers
from fleet.models.span_layers import Product, lay_out
from fleet.models.spans import Span, SpanEngine
from fleet.models.transformer import Transformer
from tests.unit.models.test_spans import CAPTIONS, CONFIG, PICTURE_TOKENS, TOKENS

needs_fbgemm = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="no FBGEMM here"
)


def layer(*, bias: bool = False, exact: bool = True) -> nn.Linear:
    torch.manual_seed(1)
    made = nn.Linear(70, 50, bias=bias)
    if exact:
        made.weight.data = made.weight.data.half().float()
    lay_out(made)
    return made


@needs_fbgemm
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_the_layer_s(bias: bool) -> None:
    plain, x = layer(bias=bias), torch.randn(9, 70)

    product = Product.of(plain)

    assert product.packed is not None
    torch.testing.assert_close(product(x), plain(x).detach(), atol=1e-5, rtol=0)


@needs_fbgemm
def test_a_row_has_the_same_bits_in_any_number_of_rows() -> None:
    product, x = Product.of(layer()), torch.randn(67, 70)
    together = product(x)

    for count in (1, 2, 3, 5, 16, 33, 66):
        assert torch.equal(product(x[:count]), together[:count])


def test_weights_that_fp16_does_not_hold_are_not_packed() -> None:
    plain, x, total = layer(exact=False), torch.randn(9, 70), torch.ones(9, 50)

    product = Product.of(plain)
    product.add_to(total, x)

    assert product.packed is None
    torch.testing.assert_close(total, 1 + plain(x).detach(), atol=1e-5, rtol=0)


def model() -> Transformer:
    torch.manual_seed(3)
    made = Transformer(CONFIG)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
        parameter.data = parameter.data.half().float()
    return made


def states(engine: SpanEngine, width: int, company: int) -> Tensor:
    """The hidden states [T, D] of a picture in spans of `width`, beside others in each pass."""
    rows = 1 + company
    cache = engine.new_cache(rows)
    condition = engine.transformer.condition(CAPTIONS[:1])
    for row in range(rows):
        cache.begin(row, condition, 0)
    found = []
    for start in range(0, TOKENS, width):
        end = min(start + width, TOKENS)
        spans = [Span(row, start, PICTURE_TOKENS[row % 3, start:end]) for row in range(rows)]
        found.append(engine.run(cache, spans)[: end - start])
    return torch.cat(found)


@needs_fbgemm
@pytest.mark.parametrize(("width", "company"), [(1, 0), (3, 0), (1, 6), (7, 2)])
def test_neither_a_cut_nor_company_changes_a_bit(width: int, company: int) -> None:
    engine = SpanEngine(model())

    assert torch.equal(states(engine, width, company), states(engine, TOKENS, 0))


def test_an_engine_of_packed_weights_is_that_of_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer = model()
    packed = SpanEngine(copy.deepcopy(transformer))
    monkeypatch.setattr(span_layers, "_packs", lambda _weight: False)
    plain = SpanEngine(transformer)

    expected = states(plain, 4, 0)

    torch.testing.assert_close(states(packed, 4, 0), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed.logits(expected), plain.logits(expected), atol=1e-4, rtol=0)
