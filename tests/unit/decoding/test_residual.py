"""Laws of the residual and the relaxed rule."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fleet.decoding.noise import Stream, gumbel, uniform
from fleet.decoding.residual import (
    Evidence,
    Luck,
    QuantisedLaw,
    acceptance,
    correction,
    judge_residual,
    quantise_law,
    relaxed_distance,
)
from fleet.decoding.sampling import law
from fleet.decoding.verify import NO_TOKEN, Verdict
from fleet.errors import InvalidInputError
from tests.unit.decoding.laws import chi_square_z, total_variation

Laws = NDArray[np.float64]
SYMBOLS = 50


def two_laws(seed: int, distance: float = 1.0) -> tuple[Laws, Laws]:
    """A target and a draft law."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=SYMBOLS) * 2
    other = logits + rng.normal(size=SYMBOLS) * distance
    return law(logits).astype(np.float64), law(other).astype(np.float64)


def output_law(target: Laws, draft: Laws, relaxation: float) -> Laws:
    """The law of the token that the rule leaves: what stands, and what replaces the rest."""
    stands = draft * acceptance(target, draft, relaxation)
    result: Laws = stands + (1 - stands.sum()) * correction(target, draft, relaxation)
    return result


@given(st.integers(0, 2**32 - 1), st.floats(0, 5))
def test_the_residual_rule_leaves_the_target_law(seed: int, distance: float) -> None:
    target, draft = two_laws(seed, distance)

    result = output_law(target, draft, 1.0)

    np.testing.assert_allclose(result, target, rtol=0, atol=1e-14)


@given(st.integers(0, 2**32 - 1), st.integers(1, SYMBOLS), st.integers(1, 16))
def test_it_does_so_for_a_quantised_draft_law_too(seed: int, top_k: int, bits: int) -> None:
    target, draft = two_laws(seed)

    sent = quantise_law(draft, top_k, bits).dense(SYMBOLS)

    np.testing.assert_allclose(output_law(target, sent, 1.0), target, rtol=0, atol=1e-14)


@given(st.integers(0, 2**32 - 1), st.floats(0, 5), st.floats(1, 4))
def test_the_relaxed_rule_is_off_by_exactly_its_formula(
    seed: int, distance: float, relaxation: float
) -> None:
    target, draft = two_laws(seed, distance)

    off = total_variation(output_law(target, draft, relaxation), target)

    assert abs(off - relaxed_distance(target, draft, relaxation)) < 1e-14
    assert off <= relaxation - 1 + 1e-14
    assert off <= total_variation(target, draft) + 1e-14


def test_a_rejection_is_as_likely_as_the_laws_are_apart() -> None:
    target, draft = two_laws(1)

    rejected = 1 - (draft * acceptance(target, draft, 1.0)).sum()

    assert rejected == pytest.approx(float(total_variation(target, draft)))


def test_equal_laws_never_reject_and_their_correction_is_the_target() -> None:
    target, _ = two_laws(2)

    assert (acceptance(target, target, 1.0) == 1).all()
    np.testing.assert_array_equal(correction(target, target, 1.0), target)


@given(st.integers(0, 2**32 - 1), st.integers(1, SYMBOLS), st.integers(1, 16))
def test_a_quantised_law_sums_to_one_exactly_and_keeps_the_likeliest(
    seed: int, top_k: int, bits: int
) -> None:
    _, draft = two_laws(seed)

    sent = quantise_law(draft, top_k, bits)

    assert sent.dense(SYMBOLS).sum() == 1.0
    assert sent.counts.sum() == 1 << bits
    assert len(sent.codes) <= top_k
    assert (sent.counts - 1 < 1 << bits).all()
    assert int(draft.argmax()) in sent.codes
    shares = draft[sent.codes] / np.sort(draft)[-top_k:].sum() * (1 << bits)
    assert (np.abs(sent.counts - shares) <= 1).all()


def test_a_draft_of_a_quantised_law_has_that_law() -> None:
    _, draft = two_laws(3)
    sent = quantise_law(draft, 20, 6)
    noise = gumbel(4, np.arange(20_000), SYMBOLS)

    counts = np.bincount([sent.draw(row) for row in noise], minlength=SYMBOLS).astype(float)

    expected = sent.dense(SYMBOLS) * len(noise)
    assert counts[expected == 0].sum() == 0
    assert chi_square_z(counts[expected > 0], expected[expected > 0]) < 4


@pytest.mark.parametrize("relaxation", [1.0, 1.5])
def test_verdicts_on_many_pictures_have_the_rule_s_law(relaxation: float) -> None:
    target, draft = two_laws(5)
    sent = quantise_law(draft, 30, 8)
    size, seed = 6_000, 6
    positions = np.arange(size)
    drafts = [sent.draw(row) for row in gumbel(seed, positions, SYMBOLS)]
    accept = uniform(seed, positions, 1, Stream.ACCEPT)
    correct = gumbel(seed, positions, SYMBOLS, Stream.CORRECT)

    tokens = []
    for index, token in enumerate(drafts):
        evidence = Evidence(
            np.array([token]),
            np.array([True]),
            sent.dense(SYMBOLS)[None],
            target[None],
        )
        luck = Luck(accept[index], correct[index : index + 1])
        verdict = judge_residual(evidence, luck, relaxation)
        tokens.append(token if verdict.accepted else verdict.next_token)

    counts = np.bincount(tokens, minlength=SYMBOLS).astype(float)
    expected = output_law(target, sent.dense(SYMBOLS), relaxation)
    assert chi_square_z(counts, expected * size) < 4
    assert (chi_square_z(counts, target * size) < 4) == (relaxation == 1.0)


def backlog(drafts: list[int], uncertain: list[int], extra: int) -> Evidence:
    """Deterministic laws: the device means 0, the cloud means 1."""
    device, cloud = np.array([0.5, 0.0, 0.5]), np.array([0.0, 1.0, 0.0])
    count = len(drafts)
    return Evidence(
        np.array(drafts),
        np.array(uncertain, bool),
        np.tile(device, (count, 1)),
        np.tile(cloud, (count + extra, 1)),
    )


def luck(count: int) -> Luck:
    return Luck(np.full(count, 0.5), np.zeros((count + 1, 3), np.float32))


def test_the_first_rejected_draft_is_corrected_and_certain_ones_stand() -> None:
    assert judge_residual(backlog([0, 2, 0], [0, 1, 1], 1), luck(3), 1.0) == Verdict(1, 1)
    assert judge_residual(backlog([0, 2, 0], [0, 0, 0], 1), luck(3), 1.0) == Verdict(3, 1)
    assert judge_residual(backlog([0, 2, 0], [0, 0, 0], 0), luck(3), 1.0) == Verdict(3, NO_TOKEN)


def test_a_draft_that_its_own_law_forbids_is_refused() -> None:
    backlog([1], [0], 0)
    with pytest.raises(InvalidInputError, match="probability 0"):
        backlog([1], [1], 0)


@pytest.mark.parametrize("relaxation", [0.9, float("nan")])
def test_a_relaxation_below_one_is_refused(relaxation: float) -> None:
    with pytest.raises(InvalidInputError, match="relaxation"):
        acceptance(*two_laws(0), relaxation)


@pytest.mark.parametrize(
    "arguments",
    [
        (np.full(4, 0.25), 0, 8),
        (np.full(4, 0.25), 5, 8),
        (np.full(4, 0.25), 4, 0),
        (np.full(4, 0.25), 4, 17),
        (np.zeros(4), 4, 8),
        (np.array([np.nan, 1.0]), 2, 8),
        (np.array([-0.5, 1.5]), 2, 8),
    ],
)
def test_what_cannot_be_quantised_is_refused(arguments: tuple[Any, int, int]) -> None:
    with pytest.raises(InvalidInputError):
        quantise_law(*arguments)


def test_counts_that_are_no_law_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="sum to 3"):
        QuantisedLaw(np.array([0, 1]), np.array([1, 2]), 2)
    with pytest.raises(InvalidInputError, match="positive"):
        QuantisedLaw(np.array([0, 1]), np.array([0, 4]), 2)


def test_laws_of_another_number_are_refused() -> None:
    laws = np.full((2, 3), 1 / 3)
    marks = np.ones(2, bool)

    with pytest.raises(InvalidInputError, match="draft laws for"):
        Evidence(np.zeros(1, int), marks, laws, laws)
    with pytest.raises(InvalidInputError, match="target laws for"):
        Evidence(np.zeros(2, int), marks, laws, laws[:1])
