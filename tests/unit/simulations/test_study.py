"""Captions, matched methods and figures of the comparison."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fleet.decoding.accept import Policy
from fleet.errors import InvalidInputError
from fleet.training.pictures import Pictures
from simulations.evaluation.budget import (
    TOLERANCE,
    Trial,
    asked_rate,
    asked_share,
    matched,
    next_threshold,
    threshold_for,
)
from simulations.evaluation.captions import SEEDS, Assignment, chosen_captions, search_captions
from simulations.evaluation.catalogue import Setting, Shipped, all_names, check_names
from simulations.evaluation.catalogue import method as by_name
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import Method
from simulations.evaluation.moment import AMENDED, CORRECTED, LOCAL, PREFIX, VERIFIED
from simulations.evaluation.own import at_edge, candidates
from simulations.evaluation.rules.oracle import Oracle
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.study import corrected_share

SHIPPED = Shipped(SamplingRule(), Policy("uncertainty", 0.5), prefix=2)
SETTING = Setting(SHIPPED, SHIPPED.sampling, rate=0.25, tokens=12)


def pictures() -> Pictures:
    """1,200 pictures of one pixel: two thirds train, a sixth each validation and test."""
    split = np.array([0, 0, 0, 0, 1, 2] * 200, np.uint8)
    names = [f"style: picture {index}" for index in range(1200)]
    return Pictures(np.zeros((1200, 1, 1, 3), np.uint8), names, split, np.ones(1200, np.float32))


def sample(decisions: np.ndarray, scores: np.ndarray) -> Sample:
    count = len(decisions)
    return Sample(
        tokens=np.zeros(decisions.shape, np.uint16),
        decisions=decisions.astype(np.uint8),
        sent=np.zeros(decisions.shape, np.uint8),
        score=scores[..., 2].astype(np.float32),
        scores=scores.astype(np.float32),
        drafts=np.full(decisions.shape, -1, np.int32),
        own=np.full(decisions.shape, -1, np.int32),
        pictures=np.zeros((count, 2, 2, 3), np.uint8),
        features=np.zeros((count, 4), np.float32),
    )


def test_captions_are_distinct_and_mostly_known() -> None:
    data = pictures()

    chosen = chosen_captions(data, 400)

    assert len(set(chosen.captions)) == 400
    assert chosen.held_out.sum() == 100
    assert set(data.split[chosen.rows[chosen.held_out]]) == {2}
    assert set(data.split[chosen.rows[~chosen.held_out]]) == {0}


def test_settings_are_searched_on_other_captions() -> None:
    data = pictures()
    chosen = chosen_captions(data, 400)

    searched = search_captions(data, 200, chosen)

    assert not set(searched.captions) & set(chosen.captions)
    assert set(data.split[searched.rows[searched.held_out]]) == {1}
    assert searched.held_out.mean() == chosen.held_out.mean() == 0.25


def test_where_the_test_split_is_small_other_captions_are_as_rarely_unseen() -> None:
    data = pictures()
    small = replace(data, split=np.where(np.arange(1200) % 12 == 5, 0, data.split))

    chosen = chosen_captions(small, 800)
    searched = search_captions(small, 80, chosen)

    assert chosen.held_out.sum() == 100
    assert searched.held_out.sum() == 10


def test_every_picture_has_a_seed_of_its_own_and_every_group_its_share() -> None:
    chosen = chosen_captions(pictures(), 400)

    assert len(set(chosen.seeds)) == 400
    counts = np.bincount(chosen.groups)
    assert len(counts) == SEEDS
    assert counts.max() - counts.min() <= 1


class Drawer:
    """Stands for the studio: the more is asked, the more a method doubts, by `drift` a share.

    `unasked`: the share of the tokens that the hub changes without a question.
    """

    def __init__(self, drift: float = 0.0, unasked: float = 0.0) -> None:
        self.drift, self.unasked = drift, unasked
        self.base = np.random.default_rng(1).random((50, 22, 6))
        self.plans: list[list[str]] = []

    def draw(self, plan: Sequence[tuple[Method, int]], _: Assignment) -> list[Sample]:
        self.plans.append([method.name for method, _ in plan])
        return [self.drawn(method) for method, _ in plan]

    def drawn(self, method: Method) -> Sample:
        rule = method.rule
        bar = rule.threshold if isinstance(rule, Oracle) else rule.policy.threshold  # type: ignore[attr-defined]
        scores = self.base
        for _ in range(50):  # what is asked moves the scores, and they what is asked
            scores = self.base + self.drift * (scores[:, 2:, 2] > bar).mean()
        decisions = np.where(scores[..., 2] > bar, VERIFIED, LOCAL)
        kept = decisions == LOCAL
        part = self.unasked / max(self.unasked, float(kept[:, 2:].mean()), 1e-9)
        decisions[kept & (self.base[..., 0] < part)] = AMENDED
        decisions[:, :2] = PREFIX
        return sample(decisions, scores)


def asked(drawer: Drawer, method: Method) -> float:
    return asked_rate(drawer.drawn(method), 2)


@pytest.mark.parametrize(
    ("drift", "unasked", "rounds"), [(0.0, 0.0, 2), (0.2, 0.0, 4), (-0.9, 0.0, 4), (0.0, 0.05, 3)]
)
def test_a_method_asks_as_often_as_it_is_meant_to_along_its_own_pictures(
    drift: float, unasked: float, rounds: int
) -> None:
    drawer = Drawer(drift, unasked)
    first = sample(np.full((50, 22), LOCAL), drawer.base)
    methods = [by_name(name, SETTING) for name in ("entropy", "random")]

    entropy, coin = matched(drawer, methods, first, 0.25, chosen_captions(pictures(), 40))

    assert asked(drawer, entropy) == pytest.approx(0.25, abs=0.01)
    assert coin == methods[1]
    assert len([plan for plan in drawer.plans if plan]) <= rounds
    assert all(plan in ([], ["entropy"]) for plan in drawer.plans)


def test_without_pictures_of_another_method_the_search_begins_where_the_method_is() -> None:
    drawer = Drawer()

    (harm,) = matched(
        drawer, [by_name("oracle-harm", SETTING)], None, 0.25, chosen_captions(pictures(), 40)
    )

    assert isinstance(harm.rule, Oracle)
    assert asked(drawer, harm) == pytest.approx(0.25, abs=TOLERANCE)


def test_trials_that_enclose_the_share_are_joined_by_a_straight_line() -> None:
    trials = [Trial(1.0, 0.5), Trial(3.0, 0.1), Trial(4.0, 0.05)]

    assert next_threshold(trials, 4.0, 0.3) == pytest.approx(2.0)
    assert next_threshold(trials[:1], 4.0, 0.3) == 4.0
    assert next_threshold(trials[1:], 4.0, 0.3) == 4.0


def test_a_threshold_allows_for_what_the_cap_asks_anyway() -> None:
    values = np.random.default_rng(2).random((60, 40))

    policy = Policy("entropy", 0.0, max_run=5)
    threshold = threshold_for(values, 0.3, policy)

    assert threshold > threshold_for(values, 0.3, Policy("entropy", 0.0))
    assert asked_share(replace(policy, threshold=threshold), values) == pytest.approx(
        0.3, abs=0.005
    )
    tight = Policy("entropy", 0.0, max_run=3)
    most = replace(tight, threshold=threshold_for(values, 0.01, tight))
    assert asked_share(most, values) == pytest.approx(0.25)


def test_every_method_of_the_list_can_be_made_and_no_other() -> None:
    made = [by_name(name, SETTING) for name in all_names()[2:] if name != "ours"]

    assert [method.name for method in made] == [n for n in all_names()[2:] if n != "ours"]
    assert len({method.key for method in made}) >= len(made) - 1  # CIAR asks where U does
    with pytest.raises(InvalidInputError, match="there is no method 'eagle': take of cloud-only"):
        check_names(("entropy", "eagle"))
    # `--methods` takes them joined by commas.
    assert not [name for name in all_names() if "," in name]


def test_codes_split_gives_the_cloud_its_share_of_all_tokens() -> None:
    assert SETTING.budget == pytest.approx(2 / 12 + 10 / 12 * 0.25)
    assert by_name("CoDe", SETTING).prefix == round(SETTING.budget * 12)


def test_the_corrected_share_is_of_what_was_judged() -> None:
    decisions = np.array([[PREFIX, LOCAL, VERIFIED, CORRECTED, CORRECTED]], np.uint8)

    assert corrected_share(decisions) == pytest.approx(2 / 3)
    assert corrected_share(np.array([[PREFIX, LOCAL]], np.uint8)) == 0


def test_rules_that_differ_in_the_cut_alone_are_tried_once() -> None:
    cuts = [SamplingRule(t / 10, top_k) for t in (1, 2, 3, 4, 5) for top_k in (0, 64)]

    rules = candidates({"cloud": cuts, "device": [SamplingRule(0.7)]}, SamplingRule(0.3))

    assert [rule.temperature for rule in rules] == [0.1, 0.2, 0.3, 0.7]
    assert not any(rule.top_k for rule in rules)


def test_a_best_at_the_edge_of_what_was_tried_is_named() -> None:
    rules = [SamplingRule(0.1), SamplingRule(0.2), SamplingRule(0.3)]
    methods = [
        replace(by_name(name, SETTING), sampling=rule)
        for name, rule in zip(
            ("entropy", "random", "CoDe", "EAGLE-2"), (*rules, rules[0]), strict=True
        )
    ]

    assert [method.name for method in at_edge(methods, rules)] == ["entropy", "CoDe"]
