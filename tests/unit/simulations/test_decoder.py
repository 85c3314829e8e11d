"""The lock-step decoder draws what a picture drawn alone, with no cache at all, would be."""

import math

import numpy as np
import pytest
import torch

from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, guide, sharpen
from fleet.decoding.uncertainty import quantise_features, restore_features
from fleet.models.interval_head import feature_scalars, interval_law, scores
from fleet.models.transformer import Transformer
from fleet.prediction import SCORE_NAMES
from simulations.evaluation.decoder import CORRECTED, LOCAL, PREFIX, VERIFIED, decode
from simulations.evaluation.family import Family
from simulations.evaluation.methods import Method, SamplingRule, cloud_only, device_only
from tests.unit.simulations.families import GRID, VOCAB, tiny_family

CAPTIONS = ["a b", "c", "d a c"]
SEEDS = [3, 4, 5]
SHARP = SamplingRule(temperature=0.9, top_k=12, guidance=1.5)


@pytest.fixture(scope="module")
def family() -> Family:
    return tiny_family()


def mixed(family: Family, sampling: SamplingRule = SHARP) -> Method:
    """Asks about half of the positions."""
    alone = decode(family, Method("all", "score", sampling, threshold=math.inf), CAPTIONS, SEEDS)
    threshold = float(np.median(alone.scores[..., SCORE_NAMES.index("entropy")]))
    return Method(
        "mixed",
        "score",
        sampling,
        prefix=2,
        use_features=True,
        score="entropy",
        threshold=threshold,
    )


def full_pass(
    model: Transformer,
    words: np.ndarray,
    tokens: list[int],
    added: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, np.ndarray]:
    """Hidden state [1, D] and guided logits [1, V] after `tokens`, from one pass over them all."""
    rows, past = torch.from_numpy(words), torch.tensor([tokens], dtype=torch.int64)
    sides = [model(past, rows, torch.tensor([withheld]), added) for withheld in (False, True)]
    logits = [side[1][:, -1].numpy() for side in sides]
    return sides[0][0][:, -1], guide(logits[0], logits[1], scale)


@torch.inference_mode()
def alone(family: Family, method: Method, caption: str, seed: int) -> tuple[list[int], list[int]]:
    """Tokens and decisions of one picture, computed anew at every position."""
    words = family.words([caption])
    noise = gumbel(seed, np.arange(GRID * GRID), VOCAB)
    tokens: list[int] = []
    decisions: list[int] = []
    added = torch.zeros(1, 0, family.cloud.config.dim)
    scale = family.feature.scale.numpy()
    for position in range(GRID * GRID):
        guidance = method.sampling.guidance
        _, cloud = full_pass(family.cloud.transformer, words, tokens, added, guidance)
        hidden, device = full_pass(family.device.transformer, words, tokens, None, guidance)
        own = int(draw(sharpen(cloud, method.sampling), noise[position][None])[0])
        draft = int(draw(sharpen(device, method.sampling), noise[position][None])[0])
        law = interval_law(torch.from_numpy(device), family.parts.head.radius(hidden))
        score = scores(law, family.codes)[:, SCORE_NAMES.index(method.score)]
        local = position >= method.prefix and float(score[0]) <= method.threshold
        tokens.append(draft if local else own)
        row = torch.zeros(1, 1, family.cloud.config.dim)
        if local:
            scalars = feature_scalars(law, torch.tensor([draft]), score, method.threshold)
            raw = family.projection(scalars, hidden).numpy()
            sent = restore_features(quantise_features(raw, scale), scale)
            row = family.feature(torch.from_numpy(sent))[:, None]
        added = torch.cat([added, row], dim=1)
        judged = VERIFIED if own == draft else CORRECTED
        decisions.append(PREFIX if position < method.prefix else LOCAL if local else judged)
    return tokens, decisions


@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_a_batch_draws_what_each_picture_draws_alone(family: Family, guidance: float) -> None:
    method = mixed(family, SamplingRule(0.9, 12, guidance))

    drawn = decode(family, method, CAPTIONS, SEEDS)

    assert 0.2 < (drawn.decisions == LOCAL).mean() < 0.8
    for row, (caption, seed) in enumerate(zip(CAPTIONS, SEEDS, strict=True)):
        tokens, decisions = alone(family, method, caption, seed)
        assert drawn.tokens[row].tolist() == tokens
        assert drawn.decisions[row].tolist() == decisions


def test_asking_about_everything_is_cloud_only(family: Family) -> None:
    everything = Method("all", "score", SHARP, prefix=3, use_features=True, threshold=-math.inf)

    asked = decode(family, everything, CAPTIONS, SEEDS)
    cloud = decode(family, cloud_only(SHARP), CAPTIONS, SEEDS)

    np.testing.assert_array_equal(asked.tokens, cloud.tokens)
    assert not (asked.decisions == LOCAL).any()


def test_asking_about_nothing_is_device_only(family: Family) -> None:
    nothing = Method("none", "score", SHARP, use_features=True, threshold=math.inf)

    kept = decode(family, nothing, CAPTIONS, SEEDS)
    device = decode(family, device_only(SHARP), CAPTIONS, SEEDS)

    np.testing.assert_array_equal(kept.tokens, device.tokens)
    assert (device.decisions == LOCAL).all()


def test_a_picture_does_not_depend_on_its_company(family: Family) -> None:
    method = mixed(family)

    together = decode(family, method, CAPTIONS, SEEDS)
    one = decode(family, method, CAPTIONS[1:2], SEEDS[1:2])

    np.testing.assert_array_equal(together.tokens[1], one.tokens[0])


def test_a_coin_asks_at_its_rate_and_by_seed_only() -> None:
    coin = Method("random", "random", SHARP, rate=0.3)
    none = np.zeros((400, len(SCORE_NAMES)))

    first = np.stack([coin.asks(position, none, list(range(400))) for position in range(20)])
    again = np.stack([coin.asks(position, none, list(range(400))) for position in range(20)])

    assert first.mean() == pytest.approx(0.3, abs=0.02)
    np.testing.assert_array_equal(first, again)


def test_a_score_that_is_not_finite_asks() -> None:
    method = Method("u", "score", SHARP, score="uncertainty", threshold=math.inf)
    values = np.zeros((3, len(SCORE_NAMES)))
    values[:, 0] = [math.nan, math.inf, 1.0]

    assert method.asks(0, values, [1, 2, 3]).tolist() == [True, True, False]


def test_the_key_is_the_settings_not_the_name() -> None:
    a, b = Method("x", "cloud", SHARP), Method("y", "cloud", SHARP)

    assert a.key == b.key
    assert a.key != Method("x", "cloud", SamplingRule()).key
