"""Spans through the cache give what the whole picture at once would give."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fleet.models import span_torch
from fleet.models.span_cache import KVCache, Span
from fleet.models.spans import SpanEngine
from fleet.models.transformer import Transformer, TransformerConfig

CONFIG = TransformerConfig(
    n_layer=2,
    n_head=2,
    dim=32,
    ffn=64,
    vocab_size=61,
    grid=6,
    n_word=20,
    caption_dim=16,
    sketch_slots=3,
    sketch_width=3,
)
PICTURES = 3
TOKENS = CONFIG.n_token


def make_engine() -> SpanEngine:
    torch.manual_seed(3)
    transformer = Transformer(CONFIG)
    for parameter in transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return SpanEngine(transformer)


ENGINE = make_engine()
PICTURE_TOKENS = np.random.default_rng(5).integers(0, 61, (PICTURES, TOKENS))
CAPTIONS = torch.tensor([[0] * 13 + [4, 9, 2], [0] * 15 + [7], [0] * 8 + [3] * 8])
WITHHELD = torch.tensor([False, False, True])


def begin(cache: KVCache, rows: list[int]) -> Tensor:
    condition = ENGINE.transformer.condition(CAPTIONS, WITHHELD)
    for picture, row in enumerate(rows):
        cache.begin(row, condition, picture)
    return condition.start


def reference() -> Tensor:
    """Return the hidden states [pictures, T + 1, D] of one pass over all tokens."""
    with torch.inference_mode():
        hidden, _ = ENGINE.transformer(torch.from_numpy(PICTURE_TOKENS), CAPTIONS, WITHHELD)
    return torch.as_tensor(hidden)


def span(picture: int, start: int, end: int, row: int | None = None) -> Span:
    where = picture if row is None else row
    return Span(where, start, PICTURE_TOKENS[picture, start:end])


def test_the_start_state_is_the_one_before_the_first_token() -> None:
    start = begin(ENGINE.new_cache(PICTURES), [0, 1, 2])

    torch.testing.assert_close(start, reference()[:, 0], atol=1e-5, rtol=0)


def test_whole_pictures_in_one_span_each_equal_the_plain_forward() -> None:
    cache = ENGINE.new_cache(PICTURES)
    begin(cache, [0, 1, 2])

    hidden = ENGINE.run(cache, [span(picture, 0, TOKENS) for picture in range(PICTURES)])

    expected = reference()[:, 1:].flatten(0, 1)
    torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data())
def test_any_cut_and_any_company_equal_the_plain_forward(data: st.DataObject) -> None:
    cache = ENGINE.new_cache(6)
    rows = data.draw(st.permutations(range(6)))[:PICTURES]
    begin(cache, rows)
    done = [0] * PICTURES
    states = torch.full((PICTURES, TOKENS, CONFIG.dim), torch.nan)

    while min(done) < TOKENS:
        unfinished = [p for p in range(PICTURES) if done[p] < TOKENS]
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique=True))
        ends = {p: data.draw(st.integers(done[p] + 1, min(done[p] + 13, TOKENS))) for p in chosen}
        hidden = ENGINE.run(cache, [span(p, done[p], ends[p], rows[p]) for p in chosen])
        for p, own in zip(
            chosen, torch.split(hidden, [ends[p] - done[p] for p in chosen]), strict=True
        ):
            states[p, done[p] : ends[p]] = own
            done[p] = ends[p]

    torch.testing.assert_close(states, reference()[:, 1:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("width", [1, 3, 4, 7])
def test_a_cut_changes_no_bit(width: int) -> None:
    whole, cut = ENGINE.new_cache(PICTURES), ENGINE.new_cache(PICTURES)
    begin(whole, [0, 1, 2])
    begin(cut, [0, 1, 2])

    expected = ENGINE.run(whole, [span(1, 0, TOKENS)])
    parts = [
        ENGINE.run(cut, [span(1, start, min(start + width, TOKENS))])
        for start in range(0, TOKENS, width)
    ]

    assert torch.equal(torch.cat(parts), expected)


def test_company_changes_no_bit() -> None:
    alone, together = ENGINE.new_cache(PICTURES), ENGINE.new_cache(PICTURES)
    begin(alone, [0, 1, 2])
    begin(together, [0, 1, 2])

    for start in range(0, TOKENS, 4):
        crowd = ENGINE.run(together, [span(p, start, start + 4) for p in range(PICTURES)])
        for p, own in enumerate(torch.split(crowd, 4)):
            assert torch.equal(ENGINE.run(alone, [span(p, start, start + 4)]), own)


def test_a_rollback_is_an_earlier_start() -> None:
    cache = ENGINE.new_cache(PICTURES)
    begin(cache, [0, 1, 2])
    ENGINE.run(cache, [span(0, 0, 8)])
    wrong = (PICTURE_TOKENS[0, 8:20] + 1) % 61
    ENGINE.run(cache, [Span(0, 8, wrong)])

    again = ENGINE.run(cache, [span(0, 8, 20)])

    torch.testing.assert_close(again, reference()[0, 9:21], atol=1e-5, rtol=0)


def test_adding_zero_changes_no_bit() -> None:
    plain, zero = ENGINE.new_cache(PICTURES), ENGINE.new_cache(PICTURES)
    begin(plain, [0, 1, 2])
    begin(zero, [0, 1, 2])

    expected = ENGINE.run(plain, [span(0, 0, 9)])
    zeros = torch.zeros(9, CONFIG.dim)
    found = ENGINE.run(zero, [span(0, 0, 9)], ENGINE.embed([span(0, 0, 9)], zeros))

    assert torch.equal(found, expected)


def test_what_is_added_reaches_its_own_token() -> None:
    added = torch.zeros(2, TOKENS, CONFIG.dim)
    added[1, 4] = 1.0
    cache = ENGINE.new_cache(PICTURES)
    begin(cache, [0, 1, 2])

    spans = [span(0, 0, 9), span(1, 0, 9)]
    found = ENGINE.run(cache, spans, ENGINE.embed(spans, added[:, :9].flatten(0, 1)))

    with torch.inference_mode():
        tokens = torch.from_numpy(PICTURE_TOKENS[:2])
        expected, _ = ENGINE.transformer(tokens, CAPTIONS[:2], WITHHELD[:2], added)
    torch.testing.assert_close(found, expected[:, 1:10].flatten(0, 1), atol=1e-5, rtol=0)


def test_neighbours_that_attend_apart_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [TOKENS, 4, 9]  # 37 cells are read as 64, 5 and 10 as 32
    together, apart = ENGINE.new_cache(PICTURES), ENGINE.new_cache(PICTURES)
    found = []
    for cache, call in ((together, 1 << 20), (apart, 0)):
        monkeypatch.setattr(span_torch, "_CALL", call)
        begin(cache, [0, 1, 2])
        ENGINE.run(cache, [span(p, 0, end - 1) for p, end in enumerate(ends)])
        found.append(ENGINE.run(cache, [span(p, end - 1, end) for p, end in enumerate(ends)]))

    assert torch.equal(*found)


def test_rows_equally_far_apart_change_no_bit() -> None:
    near, far = ENGINE.new_cache(PICTURES), ENGINE.new_cache(2 * PICTURES)
    begin(near, [0, 1, 2])
    begin(far, [0, 2, 4])

    expected = ENGINE.run(near, [span(p, 0, 9) for p in range(PICTURES)])
    found = ENGINE.run(far, [span(p, 0, 9, row=2 * p) for p in range(PICTURES)])

    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(dtype: torch.dtype) -> None:
    engine = SpanEngine(copy.deepcopy(ENGINE.transformer).to(dtype))
    cache = engine.new_cache(PICTURES)
    condition = engine.transformer.condition(CAPTIONS, WITHHELD)
    for picture in range(PICTURES):
        cache.begin(picture, condition, picture)

    hidden = engine.run(cache, [span(picture, 0, 9) for picture in range(PICTURES)])

    expected = reference()[:, 1:10].flatten(0, 1)
    assert hidden.dtype == dtype
    assert (hidden.float() - expected).abs().mean() < 0.03 * expected.abs().mean()


def test_the_engine_copies_no_weights() -> None:
    transformer = copy.deepcopy(ENGINE.transformer)
    before = {name: value.clone() for name, value in transformer.state_dict().items()}

    engine = SpanEngine(transformer)

    after = transformer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    transformer.blocks[0].feed_forward.w2.weight.data.zero_()
    cache = engine.new_cache(1)
    cache.begin(0, engine.transformer.condition(CAPTIONS), 0)
    assert not torch.equal(engine.run(cache, [span(0, 0, 4)]), ENGINE.run(cache, [span(0, 0, 4)]))
