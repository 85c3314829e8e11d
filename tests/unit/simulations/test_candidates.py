"""Several drafts for one position: exact laws by enumeration, LANTERN against its definition."""

import itertools

import numpy as np
import pytest

from simulations.evaluation.rules.candidates import (
    REFUSED,
    Law,
    Neighbourhood,
    choose,
    choose_sampled,
    nearest_codes,
)

SIZE = 7
SCARCE = 1e-12


def law(seed: int, zeros: int = 0) -> Law:
    weights: Law = np.random.default_rng(seed).dirichlet(np.full(SIZE, 0.5))
    weights[:zeros] = 0
    normal: Law = weights / weights.sum()
    return normal


def law_of_choice(
    target: np.ndarray, candidates: list[int], draft: np.ndarray | None
) -> np.ndarray:
    """The token's law, from the probability of every way through the candidates.

    Each candidate's probability to stand is found by bisecting the uniform number.
    """
    found = np.zeros(SIZE)
    reached = 1.0
    for index, token in enumerate(candidates):
        refused = [1.0] * index  # all before are refused

        def stands(luck: float, before: list[float] = refused, here: int = index) -> bool:
            luck_list = np.array([*before, luck] + [1.0] * (len(candidates) - here - 1))
            if draft is None:
                return choose(target, candidates, luck_list).index == here
            return choose_sampled(target, draft, candidates, luck_list).index == here

        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if stands(middle) else (low, middle)
        found[token] += reached * low
        reached *= 1 - low
    last = np.ones(len(candidates))
    left = (
        choose(target, candidates, last)
        if draft is None
        else choose_sampled(target, draft, candidates, last)
    )
    assert reached < SCARCE or left.index == REFUSED
    return found + reached * left.left


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("candidates", [[], [3], [5, 0, 2], [6, 5, 4, 3, 2, 1, 0]])
def test_whatever_is_proposed_the_token_has_the_targets_law(
    seed: int, candidates: list[int]
) -> None:
    target = law(seed, zeros=seed % 3)

    np.testing.assert_allclose(law_of_choice(target, candidates, None), target, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_drafts_without_replacement_leave_the_targets_law(seed: int, count: int) -> None:
    target, draft = law(seed), law(seed + 10, zeros=2)

    total = np.zeros(SIZE)
    for candidates in itertools.permutations(np.flatnonzero(draft).tolist(), count):
        chance, left = 1.0, 1.0
        for token in candidates:
            chance *= draft[token] / left
            left -= draft[token]
        total += chance * law_of_choice(target, list(candidates), draft)

    np.testing.assert_allclose(total, target, atol=1e-12)


def test_a_draw_beyond_the_draft_law_is_not_judged() -> None:
    draft = np.eye(SIZE)[2]

    choice = choose_sampled(law(1), draft, [2, 0, 1], np.array([1.0, 0.0, 0.0]))

    assert choice.index == REFUSED


def codes() -> Law:
    points: Law = np.random.default_rng(3).normal(size=(SIZE, 3))
    normal: Law = points / np.linalg.norm(points, axis=1, keepdims=True)
    return normal


def test_the_nearest_codes_come_in_the_order_of_their_distance() -> None:
    points = codes()

    nearest = nearest_codes(points, 4)

    for code in range(SIZE):
        distance = np.linalg.norm(points - points[code], axis=1)
        others = sorted((d, k) for k, d in enumerate(distance) if k != code)
        assert nearest[code].tolist() == [k for _, k in others[:4]]


def transcription(
    p: np.ndarray, draft: int, nearest: list[int], delta: float, lam: float | None, u: float
) -> tuple[bool, np.ndarray]:
    """LANTERN's rule word by word: does the draft stand, and what is left if not?"""
    p = p.copy()
    j_star, s_star, s = 0, 0.0, 0.0
    for j, neighbour in enumerate(nearest, start=1):
        s = s + p[neighbour]
        if s <= (delta if lam is None else (lam - 1) * p[draft]):
            j_star, s_star = j, s
    if u < min(1.0, p[draft] + s_star):
        return True, p
    p[draft] = 0
    if j_star:
        p[nearest] = 0
    return False, p / p.sum()


@pytest.mark.parametrize("lam", [None, 3.0])
@pytest.mark.parametrize("delta", [0.05, 0.2])
@pytest.mark.parametrize("seed", range(6))
def test_lantern_is_its_definition(seed: int, delta: float, lam: float | None) -> None:
    rng = np.random.default_rng(seed)
    p, nearest = law(seed + 20), nearest_codes(codes(), 3)
    rule = Neighbourhood(nearest, delta if lam is None else lam, is_ratio=lam is not None)
    candidates, uniforms = rng.permutation(SIZE)[:3].tolist(), rng.random(3)

    choice = choose(p, candidates, uniforms, rule)

    left, index = p, REFUSED
    for place, token in enumerate(candidates):
        stood, left = transcription(
            left, token, nearest[token].tolist(), delta, lam, uniforms[place]
        )
        if stood:
            index = place
            break
    assert choice.index == index
    np.testing.assert_allclose(choice.left, left, atol=1e-12)


def test_neighbours_lend_no_more_than_the_bound() -> None:
    p = np.array([0.1, 0.2, 0.05, 0.3, 0.15, 0.1, 0.1])
    nearest = np.tile([1, 2, 3], (SIZE, 1))

    lent, lenders = Neighbourhood(nearest, 0.26).lent(p, 0)
    none, nobody = Neighbourhood(nearest, 0.1).lent(p, 0)
    ratio, two = Neighbourhood(nearest, 3.6, is_ratio=True).lent(p, 0)

    assert lent == pytest.approx(0.25)
    assert (none, nobody) == (0.0, 0)
    assert ratio == pytest.approx(0.25)
    assert lenders == two == 2


def test_a_static_draft_stands_by_the_ratio_to_its_own_law() -> None:
    p, q = law(1), law(2)
    nearest = nearest_codes(codes(), 3)
    rule = Neighbourhood(nearest, 5.0, is_ratio=True)
    lent, _ = rule.lent(p, 4)
    ratio = (p[4] + lent) / q[4]

    below, above = ratio * 0.999, min(ratio * 1.001, 1.0)

    assert choose_sampled(p, q, [4], np.array([min(below, 1.0 - 1e-9)]), rule).index == 0
    if ratio < 0.99:
        assert choose_sampled(p, q, [4], np.array([above]), rule).index == REFUSED
