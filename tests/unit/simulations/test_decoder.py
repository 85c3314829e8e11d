"""The lock-step decoder draws what a picture drawn alone, with no cache at all, would be."""

import math

import numpy as np
import pytest
import torch

from fleet.decoding.accept import Policy
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, guide, sharpen
from fleet.decoding.uncertainty import quantise_features, restore_features
from fleet.models.interval_head import feature_scalars, interval_law, scores
from fleet.models.transformer import Transformer
from fleet.prediction import SCORE_NAMES
from simulations.evaluation.decoder import decode
from simulations.evaluation.family import Family
from simulations.evaluation.methods import Method, cloud_only, device_only
from simulations.evaluation.moment import AMENDED, CORRECTED, LOCAL, PREFIX, VERIFIED
from simulations.evaluation.rules.gates import Coupling, Gate
from simulations.evaluation.rules.oracle import Oracle, Sees
from simulations.evaluation.sampling_rule import SamplingRule
from tests.unit.simulations.families import GRID, VOCAB, tiny_family

CAPTIONS = ["a b", "c", "d a c"]
SEEDS = [3, 4, 5]
SHARP = SamplingRule(temperature=0.9, top_k=12, guidance=1.5)


@pytest.fixture(scope="module")
def family() -> Family:
    return tiny_family()


def by_entropy(threshold: float, sampling: SamplingRule = SHARP, prefix: int = 0) -> Method:
    """Asks where the entropy is above the threshold."""
    rule = Gate(Policy("entropy", threshold))
    return Method("by entropy", rule, sampling, prefix, use_features=True)


def mixed(family: Family, sampling: SamplingRule = SHARP) -> Method:
    """Asks about half of the positions."""
    alone = decode(family, by_entropy(math.inf, sampling), CAPTIONS, SEEDS)
    threshold = float(np.median(alone.scores[..., SCORE_NAMES.index("entropy")]))
    return by_entropy(threshold, sampling, prefix=2)


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
        _, cloud = full_pass(family.cloud, words, tokens, added, guidance)
        hidden, device = full_pass(family.device, words, tokens, None, guidance)
        own = int(draw(sharpen(cloud, method.sampling), noise[position][None])[0])
        draft = int(draw(sharpen(device, method.sampling), noise[position][None])[0])
        law = interval_law(torch.from_numpy(device), family.parts.head.radius(hidden))
        threshold = method.rule.bar[1]
        score = scores(law, family.codes)[:, SCORE_NAMES.index("entropy")]
        local = position >= method.prefix and float(score[0]) <= threshold
        tokens.append(draft if local else own)
        row = torch.zeros(1, 1, family.cloud.config.dim)
        if local:
            scalars = feature_scalars(law, torch.tensor([draft]), score, threshold)
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
    everything = by_entropy(-math.inf, prefix=3)

    asked = decode(family, everything, CAPTIONS, SEEDS)
    cloud = decode(family, cloud_only(SHARP), CAPTIONS, SEEDS)

    np.testing.assert_array_equal(asked.tokens, cloud.tokens)
    assert not (asked.decisions == LOCAL).any()


def test_asking_about_nothing_is_device_only(family: Family) -> None:
    kept = decode(family, by_entropy(math.inf), CAPTIONS, SEEDS)
    device = decode(family, device_only(SHARP), CAPTIONS, SEEDS)

    np.testing.assert_array_equal(kept.tokens, device.tokens)
    assert (device.decisions == LOCAL).all()


def test_a_picture_does_not_depend_on_its_company(family: Family) -> None:
    method = mixed(family)

    together = decode(family, method, CAPTIONS, SEEDS)
    one = decode(family, method, CAPTIONS[1:2], SEEDS[1:2])

    np.testing.assert_array_equal(together.tokens[1], one.tokens[0])


def test_a_coin_asks_at_its_rate_and_by_seed_only(family: Family) -> None:
    coin = Method("random", Gate(Policy("random", 0.7)), SHARP)
    captions, seeds = ["a b"] * 40, list(range(40))

    first = decode(family, coin, captions, seeds).decisions != LOCAL
    again = decode(family, coin, captions[:5], seeds[:5]).decisions != LOCAL

    assert first.mean() == pytest.approx(0.3, abs=0.06)
    np.testing.assert_array_equal(first[:5], again)


def test_a_score_that_is_not_finite_asks() -> None:
    broken = tiny_family()
    with torch.no_grad():
        broken.parts.head.radius_up.bias.fill_(math.nan)
    method = Method("u", Gate(Policy("uncertainty", 1e30)), SHARP)

    assert not (decode(broken, method, CAPTIONS, SEEDS).decisions == LOCAL).any()


def test_no_run_without_the_cloud_is_longer_than_the_cap(family: Family) -> None:
    capped = Method("capped", Gate(Policy("entropy", math.inf, max_run=3)), SHARP)

    decisions = decode(family, capped, CAPTIONS, SEEDS).decisions

    pattern = ([True] * 3 + [False]) * 4
    np.testing.assert_array_equal(decisions == LOCAL, [pattern] * len(SEEDS))


@pytest.mark.parametrize("coupling", ["gumbel", "residual"])
def test_the_coupling_changes_who_agrees_not_who_is_asked(
    family: Family, coupling: Coupling
) -> None:
    method = Method("x", Gate(Policy("random", -math.inf), coupling=coupling), SHARP)

    decisions = decode(family, method, ["a b"] * 60, list(range(60))).decisions

    # All asked: the share that stands is that of equal draws, at most 1 - TV of the two laws.
    assert set(np.unique(decisions)) == {VERIFIED, CORRECTED}


def test_an_amended_token_is_the_clouds_own_and_far_from_the_draft(family: Family) -> None:
    never_asked = Gate(Policy("entropy", math.inf), amend_beyond=0.5)

    drawn = decode(family, Method("amended", never_asked, SHARP), CAPTIONS, SEEDS)
    all_of_them = Gate(Policy("entropy", math.inf), amend_beyond=-1.0)
    cloud = decode(family, Method("all", all_of_them, SHARP), CAPTIONS, SEEDS)

    assert 0 < (drawn.decisions == AMENDED).mean() < 1
    own = decode(family, cloud_only(SHARP), CAPTIONS, SEEDS)
    np.testing.assert_array_equal(cloud.tokens, own.tokens)


@pytest.mark.parametrize("sees", ["match", "harm"])
def test_an_oracle_that_corrects_whatever_differs_draws_the_clouds_picture(
    family: Family, sees: Sees
) -> None:
    drawn = decode(family, Method("oracle", Oracle(sees), SHARP, prefix=2), CAPTIONS, SEEDS)

    cloud = decode(family, cloud_only(SHARP), CAPTIONS, SEEDS)
    np.testing.assert_array_equal(drawn.tokens, cloud.tokens)
    differ = drawn.drafts != drawn.own
    np.testing.assert_array_equal(drawn.decisions[:, 2:] == CORRECTED, differ[:, 2:])
    assert 0 < (drawn.decisions == LOCAL).mean() < 1
    assert (drawn.drafts[:, :2] == -1).all()


@pytest.mark.parametrize("sees", ["match", "harm", "TV"])
def test_an_oracle_keeps_what_is_not_above_its_threshold(family: Family, sees: Sees) -> None:
    first = decode(family, Method("oracle", Oracle(sees), SHARP), CAPTIONS, SEEDS)
    bar = float(np.quantile(first.score, 0.7))

    drawn = decode(family, Method("oracle", Oracle(sees, bar), SHARP), CAPTIONS, SEEDS)

    kept = drawn.decisions == LOCAL
    np.testing.assert_array_equal(kept, drawn.score <= np.float32(bar))
    np.testing.assert_array_equal(drawn.tokens, np.where(kept, drawn.drafts, drawn.own))
    assert (kept & (drawn.drafts != drawn.own)).any()


def test_the_key_is_the_settings_not_the_name() -> None:
    a, b = by_entropy(0.5), by_entropy(0.5)

    assert a.key == b.key
    assert a.key != by_entropy(0.6).key
    assert a.key != Method("x", Gate(Policy("random", 0.5)), SHARP, 0, use_features=True).key
