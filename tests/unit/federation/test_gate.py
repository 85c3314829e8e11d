"""The gate: every kind of broken reply is kept out or bounded, and named."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fleet.federation.gate import Limits, Reply, examine

START = {"w": np.zeros((4, 3), np.float16), "b": np.zeros(4, np.float16)}
GOOD = {
    "num-examples": 100,
    "loss-before": 1.0,
    "loss-error": 0.1,
    "loss-after": 0.9,
    "tv-before": 0.3,
    "tv-after": 0.2,
}


def update(seed: int, scale: float = 1.0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        name: (scale * (0.1 + 0.02 * rng.normal(size=value.shape))).astype(np.float16)
        for name, value in START.items()
    }


def cohort(*others: Reply) -> list[Reply]:
    return [*(Reply(node, update(node), GOOD) for node in range(10, 18)), *others]


def announced(replies: list[Reply]) -> dict[int, int]:
    return {each.node: 100 for each in replies}


def test_sound_replies_pass_unchanged_by_node() -> None:
    replies = list(reversed(cohort()))

    admitted, refused = examine(START, replies, announced(replies), Limits())

    assert [each.node for each in admitted] == list(range(10, 18))
    assert not refused
    assert all(each.note == "" for each in admitted)
    for each in admitted:
        np.testing.assert_array_equal(each.arrays["w"], update(each.node)["w"])


NAN = update(1) | {"b": np.array([0, np.nan, 0, np.inf], np.float16)}


@pytest.mark.parametrize(
    ("arrays", "metrics", "reason"),
    [
        (NAN, GOOD, "b holds 2 numbers that are not finite"),
        (update(1) | {"b": np.full(4, np.inf, np.float16)}, GOOD, "not finite"),
        (update(1, 500.0), GOOD, "an update of norm"),
        (update(1, -1.0), GOOD, "an update against the others: cosine -"),
        ({"w": START["w"]}, GOOD, "arrays ['w'] instead of ['b', 'w']"),
        (update(1) | {"x": START["b"]}, GOOD, "arrays ['b', 'w', 'x'] instead of"),
        (update(1) | {"b": np.zeros(5, np.float16)}, GOOD, "b is float16 (5,) instead of"),
        (update(1) | {"b": np.zeros(4, np.float32)}, GOOD, "b is float32 (4,) instead of"),
        (update(1), GOOD | {"num-examples": 0}, "num-examples is 0"),
        (update(1), GOOD | {"num-examples": -5}, "num-examples is -5"),
        (update(1), GOOD | {"loss-before": float("nan")}, "loss-before is nan"),
        (update(1), GOOD | {"loss-before": [1.0]}, "loss-before is [1.0]"),
        (update(1), {"num-examples": 1}, "metrics ['num-examples'] instead of"),
        (update(1), GOOD | {"more": 1.0}, "instead of"),
    ],
)
def test_a_broken_reply_is_kept_out_and_named(
    arrays: dict[str, NDArray[Any]], metrics: dict[str, Any], reason: str
) -> None:
    replies = cohort(Reply(1, arrays, metrics))

    admitted, refused = examine(START, replies, announced(replies), Limits())

    assert [each.node for each in refused] == [1]
    assert reason in refused[0].reason
    assert [each.node for each in admitted] == list(range(10, 18))


@pytest.mark.parametrize("claimed", [1e9, float(1 << 70), 101])
def test_a_node_counts_for_no_more_than_it_announced(claimed: float) -> None:
    replies = cohort(Reply(1, update(1), GOOD | {"num-examples": claimed}))

    admitted, _ = examine(START, replies, announced(replies), Limits())

    assert admitted[0].examples == 100
    assert "counted as 100" in admitted[0].note


def test_a_long_update_is_cut_to_a_multiple_of_the_median() -> None:
    replies = cohort(Reply(1, update(1, 6.0), GOOD))

    admitted, refused = examine(START, replies, announced(replies), Limits())

    norms = [
        np.sqrt(sum((a.astype(float) ** 2).sum() for a in e.arrays.values())) for e in admitted
    ]
    assert not refused
    assert norms[0] == pytest.approx(3 * np.median(norms), rel=0.01)
    assert "cut to" in admitted[0].note


def test_a_node_that_changes_nothing_is_neither_refused_nor_a_reason_to_fail() -> None:
    replies = cohort(Reply(1, START, GOOD))

    admitted, refused = examine(START, replies, announced(replies), Limits())

    assert not refused
    assert len(admitted) == 9


def test_nobody_is_an_outlier_of_two() -> None:
    replies = [Reply(1, update(1), GOOD), Reply(2, update(2, -1.0), GOOD)]

    admitted, refused = examine(START, replies, announced(replies), Limits())

    assert (len(admitted), len(refused)) == (2, 0)
