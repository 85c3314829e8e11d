"""Spot checks on the toy: what the cloud would have drawn where the device decided alone."""

import numpy as np
import pytest

from cloud_hub.engine.checks import sample
from cloud_hub.engine.sessions import Session
from cloud_hub.notices import Notices
from cloud_hub.spot_checks import _MOST_WAITING, SpotChecks, compare, compare_all
from cloud_hub.store.checks import Check
from fleet.ids import ModelVersion
from tests.unit.cloud_hub.bench import CAPTION, Bench, device, key, opened
from tests.unit.cloud_hub.toy import CODES, opening, run_of, toy_draw, toy_logits

VERSION = ModelVersion("v1")


async def checked(bench: Bench, index: int, share: float = 1.0) -> tuple[Check, "Picture"]:
    """One device's picture and what was found in a share of its drafts."""
    one = device(bench, index, local_share=0.6)
    run = await one.picture()
    samples = [found for each in bench.looked if (found := sample(*each, share)) is not None]
    mine = [found for found in samples if found.key.node == one.node]
    return compare_all(mine, CODES, VERSION)[0], Picture(run.tokens, run.local, one.seed)


class Picture:
    """A finished picture, and what the cloud would have drawn at any of its positions."""

    def __init__(self, tokens: np.ndarray, local: np.ndarray, seed: int) -> None:
        self.tokens, self.local, self.seed = tokens, local, seed

    def cloud(self, position: int) -> int:
        run = run_of(self.tokens[:position].tolist(), self.local[:position].tolist())
        return toy_draw(CAPTION, run, self.seed)


def _pairs(check: Check, *, local: bool) -> list[tuple[int, bool]]:
    """Positions and matches of the drafts that were accepted on the device, or of the others."""
    kept = check.local == local
    return list(zip(check.positions[kept].tolist(), check.matches[kept].tolist(), strict=True))


async def test_every_local_token_is_held_against_the_cloud_s_own_draw() -> None:
    found: list[bool] = []
    async with Bench().running() as bench:
        for index in range(8):
            check, picture = await checked(bench, index)
            own = {int(p): bool(m) for p, m in _pairs(check, local=True)}
            local = np.flatnonzero(picture.local).tolist()
            assert own == {p: bool(picture.cloud(p) == picture.tokens[p]) for p in local}
            assert check.harms.tolist() == [0.0 if match else 2.0 for match in check.matches]
            found += own.values()

    assert {True, False} == set(found)


async def test_a_judged_draft_matches_where_it_stood() -> None:
    async with Bench().running() as bench:
        check, picture = await checked(bench, 5)

    judged = {int(p): bool(m) for p, m in _pairs(check, local=False)}
    assert judged
    for position, match in judged.items():
        assert picture.tokens[position] == picture.cloud(position)  # stood, or was replaced
        drafted, _ = device(bench, 5, 0.6).draft(position)
        assert match == (drafted == picture.tokens[position])


async def test_which_positions_are_checked_depends_on_the_picture_alone() -> None:
    found = []
    for window in (1, 5):
        async with Bench().running() as bench:
            one = device(bench, 5, local_share=1.0)
            one.window = window
            await one.picture()
        samples = [each for seen in bench.looked if (each := sample(*seen, 0.4)) is not None]
        found.append(np.concatenate([each.positions for each in samples]).tolist())

    assert found[0] == found[1]
    assert 0 < len(found[0]) < 13


async def test_a_history_s_local_tokens_are_checked_in_every_part_of_it() -> None:
    history = run_of([5, 6, 7, 8, 9, 10, 11], [True, False, True, True, True, False, True])
    async with Bench(chunk=3).running() as bench:
        opened(await bench.ask(opening(history=history, prefix_tokens=0)))

    samples = [found for each in bench.looked if (found := sample(*each, 1.0)) is not None]
    positions = np.concatenate([each.positions for each in samples]).tolist()
    laws = np.concatenate([each.logits for each in samples])
    assert positions == [0, 2, 3, 4, 6]
    for position, logits in zip(positions, laws, strict=True):
        before = history.part(slice(0, position))
        assert np.array_equal(logits, toy_logits(CAPTION, before, use_features=True))


async def test_nothing_is_sampled_at_share_0_and_a_full_queue_drops_the_oldest() -> None:
    async with Bench().running() as bench:
        await device(bench, 1, local_share=1.0).picture()
    session, looked = bench.looked[-1]
    notices = Notices(lambda: 0.0)

    SpotChecks(0.0, CODES, VERSION, notices).watch(session, looked)
    checks = SpotChecks(1.0, CODES, VERSION, notices)
    for _ in range(_MOST_WAITING + 3):
        checks.watch(session, looked)

    assert notices.counts["spot check dropped"] == 3
    assert isinstance(session, Session)
    assert key("n1") == session.key


async def test_a_probability_is_that_of_the_draft_under_the_sampled_law() -> None:
    async with Bench().running() as bench:
        await device(bench, 1, local_share=1.0).picture()
    found = sample(*bench.looked[-1], 1.0)
    assert found is not None

    _, _, probabilities = compare(found, CODES)

    for draft, logits, probability in zip(found.drafts, found.logits, probabilities, strict=True):
        kept = np.sort(np.argsort(-logits)[:8])  # the toy's top-k
        weights = np.exp(logits[kept].astype(float) - logits.max())
        expected = weights[kept == draft].sum() / weights.sum()
        assert probability == pytest.approx(expected, abs=1e-6)
