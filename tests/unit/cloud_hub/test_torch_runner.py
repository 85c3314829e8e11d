"""The engine on the real cloud model with random weights: batching and chunks change no token."""

import asyncio

import numpy as np
import pytest
import torch

from cloud_hub.engine.runner import Span
from cloud_hub.engine.torch_runner import TorchRunner, slots_in
from fleet.errors import InvalidInputError
from fleet.ids import ModelVersion
from fleet.models.interval_feature import IntervalFeature
from fleet.models.spans import SpanEngine
from fleet.models.torch_model import CloudModel
from fleet.models.transformer import Transformer, TransformerConfig
from tests.unit.cloud_hub.bench import Bench, device, opened, values
from tests.unit.cloud_hub.toy import EMPTY, POSITIONS, VOCAB, opening, run_of

CONFIG = TransformerConfig(
    n_layer=2,
    n_head=2,
    dim=16,
    ffn=32,
    vocab_size=VOCAB,
    grid=4,
    n_word=9,
    caption_length=16,
    sketch_slots=2,
)


@pytest.fixture(scope="module")
def model() -> CloudModel:
    torch.manual_seed(0)
    transformer = Transformer(CONFIG)
    for parameter in transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    feature = IntervalFeature(CONFIG.dim)
    torch.nn.init.normal_(feature.w_out.weight, std=0.5)
    return CloudModel("toy", ModelVersion("v"), SpanEngine(transformer), feature)


def span(
    start: int, tokens: list[int], *, slot: int = 0, begins: bool = False, guidance: float = 3.0
) -> Span:
    run = run_of(tokens, [token % 3 == 0 for token in tokens])
    return Span(slot, start, run, guidance, True, (3, 4) if begins else None)


TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, VOCAB, POSITIONS)]


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("cut", [1, 2, 5, 15])
def test_chunks_give_the_logits_of_token_by_token(
    model: CloudModel, cut: int, guidance: float
) -> None:
    one_by_one = TorchRunner(model, 1)
    expected = [one_by_one.run([span(0, [], begins=True, guidance=guidance)])[0]]
    for position, token in enumerate(TOKENS):
        expected += one_by_one.run([span(position, [token], guidance=guidance)])

    chunked = TorchRunner(model, 1)
    found = chunked.run([span(0, TOKENS[:cut], begins=True, guidance=guidance)])
    for start in range(cut, POSITIONS, cut):
        found += chunked.run([span(start, TOKENS[start : start + cut], guidance=guidance)])

    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), atol=1e-4)


def test_spans_of_many_slots_run_as_each_alone(model: CloudModel) -> None:
    alone = TorchRunner(model, 1)
    together = TorchRunner(model, 8)
    parts = [span(0, TOKENS[: 1 + slot], slot=slot, begins=True) for slot in (5, 0, 7, 2)]

    rows = together.run([*parts, span(0, [], slot=3, begins=True)])

    for part, found in zip(parts, rows, strict=False):
        expected = alone.run([span(0, part.run.tokens.tolist(), begins=True)])[0]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert rows[-1].shape == (1, VOCAB)


def test_a_slot_forgets_its_last_picture(model: CloudModel) -> None:
    used, fresh = TorchRunner(model, 1), TorchRunner(model, 1)
    used.run([Span(0, 0, run_of(TOKENS), 3.0, True, (5, 6, 7))])

    again = used.run([span(0, TOKENS[:4], begins=True)])[0]

    np.testing.assert_array_equal(again, fresh.run([span(0, TOKENS[:4], begins=True)])[0])


def test_what_is_no_number_in_a_slot_ends_with_its_picture(model: CloudModel) -> None:
    used, fresh = TorchRunner(model, 2), TorchRunner(model, 1)
    for cells in (used._cache.keys, used._cache.values):
        cells.fill_(float("nan"))

    again = used.run([span(0, TOKENS[:4], begins=True)])[0]

    np.testing.assert_array_equal(again, fresh.run([span(0, TOKENS[:4], begins=True)])[0])


def test_a_forward_prepared_before_the_last_one_ran_gives_the_same(model: CloudModel) -> None:
    spans = [
        [span(0, TOKENS[:4], begins=True)],
        [span(4, TOKENS[4:7]), span(0, TOKENS[:2], slot=1, begins=True)],
        [span(2, TOKENS[2:9], slot=1)],
    ]
    one_by_one, ahead = TorchRunner(model, 2), TorchRunner(model, 2)

    expected = [one_by_one.run(each) for each in spans]
    found = [forward() for forward in [ahead.prepare(each) for each in spans]]

    for these, those in zip(found, expected, strict=True):
        for own, other in zip(these, those, strict=True):
            np.testing.assert_array_equal(own, other)


def test_a_feature_moves_the_logits_and_zeros_do_not(model: CloudModel) -> None:
    runner = TorchRunner(model, 1)
    plain = Span(0, 0, run_of(TOKENS), 3.0, True, (3,))
    local = Span(0, 0, run_of(TOKENS, [True] * POSITIONS), 3.0, True, (3,))
    unused = Span(0, 0, local.run, 3.0, False, (3,))

    without, withs, off = (runner.run([part])[0] for part in (plain, local, unused))

    assert np.abs(withs - without).max() > 1e-2
    np.testing.assert_array_equal(off, without)


@pytest.mark.parametrize("local_share", [0.0, 0.6])
async def test_many_pictures_together_are_those_drawn_alone(
    model: CloudModel, local_share: float
) -> None:
    async def alone(index: int) -> list[int]:
        async with Bench(runner=TorchRunner(model, 1)).running() as bench:
            return values(await device(bench, index, local_share).picture())

    async with Bench(runner=TorchRunner(model, 6)).running() as bench:
        devices = [device(bench, index, local_share) for index in range(6)]
        together = await asyncio.gather(*(each.picture() for each in devices))

    assert [values(each) for each in together] == [await alone(i) for i in range(6)]
    assert bench.engine.counters.tokens_per_forward > 4


async def test_verifying_everything_is_what_the_cloud_draws_alone(model: CloudModel) -> None:
    async with Bench(runner=TorchRunner(model, 1)).running() as bench:
        verified = await device(bench, 1, 0.0).picture()
        drawn = await bench.ask(opening(seed=1001, prefix_tokens=POSITIONS, history=EMPTY))

    assert values(verified) == list(opened(drawn).tokens)


def test_the_memory_budget_gives_the_sessions_and_too_little_is_refused(model: CloudModel) -> None:
    assert slots_in(model, 1) == (1 << 20) // (2 * model.cache_row_bytes)
    with pytest.raises(InvalidInputError, match="cache_mib = 0 holds no session"):
        slots_in(model, 0)
