"""The verdict by shared noise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.decoding.verify import NO_TOKEN, Verdict, judge
from fleet.errors import InvalidInputError


def verdict(drafts: list[int], uncertain: list[int], draws: list[int]) -> Verdict:
    return judge(np.array(drafts), np.array(uncertain, bool), np.array(draws))


def test_a_backlog_that_agrees_stands_and_earns_a_bonus_token() -> None:
    assert verdict([4, 5, 6], [1, 1, 1], [4, 5, 6, 7]) == Verdict(3, 7)


def test_the_last_backlog_of_a_picture_earns_none() -> None:
    assert verdict([4, 5, 6], [1, 1, 1], [4, 5, 6]) == Verdict(3, NO_TOKEN)


def test_the_first_disagreement_is_corrected_and_later_drafts_fall() -> None:
    assert verdict([4, 5, 6], [1, 1, 1], [4, 9, 8, 7]) == Verdict(1, 9)
    assert verdict([4, 5, 6], [0, 0, 1], [4, 9, 8]) == Verdict(2, 8)


def test_a_certain_token_stands_whatever_the_cloud_would_have_drawn() -> None:
    assert verdict([4, 5, 6], [0, 0, 0], [1, 2, 3, 7]) == Verdict(3, 7)
    assert verdict([4, 5, 6], [0, 1, 0], [1, 5, 3, 7]) == Verdict(3, 7)


@given(st.data(), st.integers(1, 20))
def test_the_verdict_is_that_of_a_walk_from_the_first_token(data: st.DataObject, n: int) -> None:
    tokens = st.integers(0, 2)
    drafts = data.draw(st.lists(tokens, min_size=n, max_size=n))
    uncertain = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    draws = data.draw(st.lists(tokens, min_size=n, max_size=n + 1))

    result = verdict(drafts, uncertain, draws)

    walk = 0
    while walk < n and not (uncertain[walk] and drafts[walk] != draws[walk]):
        walk += 1
    assert result == Verdict(walk, draws[walk] if walk < len(draws) else NO_TOKEN)


@pytest.mark.parametrize(
    ("drafts", "uncertain", "draws"),
    [([1, 2], [1], [1, 2]), ([1, 2], [1, 1], [1]), ([1, 2], [1, 1], [1, 2, 3, 4])],
)
def test_lengths_that_do_not_fit_are_refused(
    drafts: list[int], uncertain: list[int], draws: list[int]
) -> None:
    with pytest.raises(InvalidInputError):
        verdict(drafts, uncertain, draws)
