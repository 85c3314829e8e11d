"""What the engine tells a device of the cloud's laws, so that it may learn."""

import numpy as np
import pytest

from cloud_hub.engine.requests import Judged, Lessons, Run
from fleet.decoding.noise import Stream, uniform
from fleet.protocol.arrays import pack_top_laws
from tests.unit.cloud_hub.bench import Bench, judged, opened
from tests.unit.cloud_hub.toy import VOCAB, backlog, opening, run_of, toy_draw, toy_logits

CAPTION, SEED = (3, 1, 4), 7
DRAFTS = run_of([1, 2, 3, 4, 5, 6], [True, False, True, True, True, False])


async def taught(lessons: Lessons, drafts: Run = DRAFTS) -> tuple[list[int], Judged, int]:
    """The prefix of a picture, the verdict on a backlog after it, and the bytes counted."""
    async with Bench().running() as bench:
        request = opening(caption=CAPTION, seed=SEED, lessons=lessons)
        prefix = list(opened(await bench.ask(request)).tokens)
        answer = judged(await bench.ask(backlog(3, drafts, ~drafts.local)))
        assert bench.engine.counters.taught == len(answer.top_laws)
        return prefix, answer, bench.engine.counters.law_bytes


async def test_a_law_is_told_of_every_draft_that_stands_and_of_the_first_that_fell() -> None:
    prefix, answer, size = await taught(Lessons(size=6, share=1.0))

    laws = answer.top_laws
    stands = min(answer.accepted + 1, len(DRAFTS))
    assert laws.positions.tolist() == list(range(3, 3 + stands))
    for index in range(stands):
        run = run_of(
            [*prefix, *DRAFTS.tokens[:index].tolist()],
            [False] * 3 + DRAFTS.local[:index].tolist(),
        )
        logits = toy_logits(CAPTION, run, use_features=True).astype(np.float64)
        log_law = logits - np.log(np.exp(logits).sum())
        assert laws.tokens[index] == toy_draw(CAPTION, run, SEED)
        assert laws.codes[index].tolist() == np.argsort(-logits)[:6].tolist()
        np.testing.assert_allclose(laws.log_probs[index], log_law[laws.codes[index]], rtol=1e-3)
    assert size == len(pack_top_laws(laws)) == 2 + stands * (4 + 6 * 4)


async def test_which_positions_are_told_depends_on_the_picture_s_noise_alone() -> None:
    trusted = run_of(DRAFTS.tokens.tolist(), [True] * len(DRAFTS))
    _, everything, _ = await taught(Lessons(size=6, share=1.0), trusted)
    _, some, _ = await taught(Lessons(size=6, share=0.5), trusted)

    positions = everything.top_laws.positions
    chosen = positions[uniform(SEED, positions, 1, Stream.CHECK)[:, 0] < 0.5]
    assert 0 < len(chosen) < len(positions)
    assert some.top_laws.positions.tolist() == chosen.tolist()


async def test_a_device_that_does_not_learn_is_told_nothing() -> None:
    _, answer, size = await taught(Lessons(size=0, share=1.0))

    assert (len(answer.top_laws), size) == (0, 0)


async def test_a_law_has_no_more_codes_than_there_are() -> None:
    _, answer, _ = await taught(Lessons(size=256, share=1.0))

    assert answer.top_laws.codes.shape[1] == VOCAB
    np.testing.assert_allclose(
        np.exp(answer.top_laws.log_probs.astype(np.float64)).sum(axis=1), 1.0, atol=1e-2
    )


@pytest.mark.parametrize(("wants", "told"), [(True, bytes(CAPTION)), (False, b"")])
async def test_a_device_is_told_of_a_caption_if_it_asks(wants: bool, told: bytes) -> None:
    async with Bench().running() as bench:
        request = opening(caption=CAPTION, seed=SEED, wants_condition=wants)

        answer = opened(await bench.ask(request))
        repeated = opened(await bench.ask(request))

    assert answer.condition == repeated.condition == told
