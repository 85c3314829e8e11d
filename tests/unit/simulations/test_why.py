"""What the page on the loss of ours says is computed from what was drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.prediction import SCORE_NAMES
from simulations.evaluation.alike import CODES_APART, Alike, alike
from simulations.evaluation.jobs import Sample
from simulations.evaluation.methods import device_only
from simulations.evaluation.metrics import Coverage, Estimate
from simulations.evaluation.moment import CORRECTED, LOCAL, PREFIX
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.study import Result, Row
from simulations.evaluation.why import (
    ALONE,
    CURVES,
    LAGS,
    MATCH,
    SHIPPED,
    Aftermath,
    Arm,
    aftermath,
    calls_for,
    differences,
)
from simulations.evaluation.why_page import Why, write_why

GROUPS = np.array([0, 1] * 20)


def sample(drafts: np.ndarray, own: np.ndarray, decisions: np.ndarray) -> Sample:
    count, length = drafts.shape
    return Sample(
        tokens=np.where(decisions == LOCAL, drafts, own).astype(np.uint16),
        decisions=decisions.astype(np.uint8),
        sent=np.zeros((count, length), np.uint8),
        score=np.zeros((count, length), np.float32),
        scores=np.zeros((count, length, 6), np.float32),
        drafts=drafts.astype(np.int32),
        own=own.astype(np.int32),
        pictures=np.zeros((count, 2, 2, 3), np.uint8),
        features=np.zeros((count, 4), np.float32),
    )


def arm(curve: str, share: float | None, calls: float, lost: float, drawn: Sample) -> Arm:
    row = Row(
        name=curve,
        sampling="",
        pictures=len(drawn),
        calls=calls,
        corrected=0.5,
        kernel=Estimate(1.0, 0.1),
        kernel_held_out=None,
        frechet=1.0,
        coverage=Coverage(0.5, 0.5),
        pixels=1234.0,
        gap_lost=Estimate(lost, 0.05),
    )
    result = Result(device_only(SamplingRule()), drawn, row)
    share_of = Estimate(0.25, 0.01)
    return Arm(
        curve, share, result, Estimate(0.0, 0.1), share_of, share_of, 0.125, np.full(15, 0.5)
    )


def blank(count: int = 2, length: int = 64) -> Sample:
    none = np.full((count, length), -1)
    return sample(none, none, np.full((count, length), LOCAL))


def test_a_loss_falls_to_its_goal_between_two_shares() -> None:
    points = [(0.6, 0.0), (0.0, 1.0), (0.4, 0.2)]

    assert calls_for(points, 0.1) == pytest.approx(0.5)
    assert calls_for(points, 1.5) == 0.0
    assert calls_for(points[1:], 0.1) is None


def test_differences_are_counted_where_both_drew_and_told_by_row() -> None:
    drafts, own = np.zeros((2, 16), int), np.zeros((2, 16), int)
    drafts[:, :2] = -1  # the prefix
    own[:, 5], own[0, 15] = 1, 1
    decisions = np.full((2, 16), LOCAL)
    decisions[:, :2], decisions[0, 15] = PREFIX, CORRECTED
    codes = np.array([[0.0, 0.0], [0.0, 2.0]])

    seen = differences(sample(drafts, own, decisions), codes, np.array([0, 1]), prefix=2)

    differing, kept, harm, by_row = seen
    assert differing.value == pytest.approx(3 / 28)
    assert kept.value == pytest.approx(2 / 28)
    assert harm == pytest.approx(2 * 4 / 28)
    np.testing.assert_allclose(by_row, [2 / 8, 0, 1 / 8])  # of the rows behind the prefix


def test_what_follows_a_kept_difference_is_told_from_what_follows_a_corrected_one() -> None:
    rng = np.random.default_rng(0)
    own, decisions = np.zeros((40, 96), int), np.full((40, 96), LOCAL)
    drafts = (rng.random(own.shape) < 0.2).astype(int)
    decisions[(drafts == 1) & (rng.random(own.shape) < 0.5)] = CORRECTED
    for row, place in np.argwhere((drafts == 1) & (decisions == LOCAL)):
        drafts[row, place + 1 : place + 2] = 1  # a kept one begets another, which begets none

    after = aftermath(arm(MATCH, 0.3, 0.3, 0.0, sample(drafts, own, decisions)), GROUPS)

    assert after.kept[0] > after.corrected[0] + 0.2
    np.testing.assert_allclose(after.kept[5:], after.corrected[5:], atol=0.15)
    assert after.kept.shape == (LAGS,)
    assert after.more.value == pytest.approx((after.kept - after.corrected).mean())


def test_a_score_that_ranks_alike_asks_the_same_and_the_distance_catches_most() -> None:
    rng = np.random.default_rng(0)
    drafts, own = np.zeros((40, 64), int), (rng.random((40, 64)) < 0.3).astype(int)
    score = own + rng.normal(size=own.shape)
    told = sample(drafts, own, np.where(score > 1, CORRECTED, LOCAL))
    scores = rng.random((40, 64, len(SCORE_NAMES))).astype(np.float32)
    scores[..., 2] = np.exp(score)
    told = replace(told, score=score.astype(np.float32), scores=scores)

    found = alike(told, np.array([[0.0, 0.0], [0.0, 2.0]]), GROUPS, prefix=2)

    by_name = {each.name: each for each in found}
    same, other, known = (by_name[n] for n in (SCORE_NAMES[2], SCORE_NAMES[0], CODES_APART))
    assert same.rank is not None
    assert same.rank.value == pytest.approx(1)
    assert same.same.value == pytest.approx(1, abs=0.01)
    assert other.same.value == pytest.approx((score > 1).mean(), abs=0.05)
    assert other.caught.value < same.caught.value
    assert known.rank is None


def test_the_page_says_what_was_found_and_names_the_cause(tmp_path: Path) -> None:
    arms = [arm(SHIPPED, None, 0.25, 0.7, blank()), arm(ALONE, None, 0.06, 1.2, blank())]
    for curve, shares in CURVES.items():
        arms += [arm(curve, share, min(share, 0.4), 0.6 - share, blank()) for share in shares]
    ends = [arms[0].result] * 3
    lags = np.full(LAGS, 0.3)
    none = Estimate(0.5, 0.1)
    scores = [Alike("entropy", none, none, none, none), Alike(CODES_APART, None, *[none] * 3)]
    whole = Why(ends, arms, Aftermath(lags, lags, Estimate(0.0, 0.01)), scores)
    facts = dict.fromkeys(("command", "commit", "family", "pictures", "seeds"), "1")

    write_why(tmp_path / "why.md", whole, facts)
    good = [replace_lost(each, 0.05) if each.curve == "oracle-TV" else each for each in arms]
    write_why(tmp_path / "good.md", replace(whole, arms=good), facts)

    text = (tmp_path / "why.md").read_text()
    assert "ours as shipped: 0.70 ± 0.05 at 25.0%" in text
    assert "Not even `oracle-match`" in text
    assert (
        "`oracle-TV` keeps within a tenth: what fails is the score"
        in (tmp_path / "good.md").read_text()
    )
    assert f"| {CODES_APART} |  | 50.0% ± 10.0% |" in text
    assert "| oracle-match | all that differ | 40.0% | 25.0% ± 1.0% |" in text
    assert (tmp_path / "why" / "budgets.png").exists()


def replace_lost(found: Arm, lost: float) -> Arm:
    row = replace(found.result.row, gap_lost=Estimate(lost, 0.05))
    return replace(found, result=replace(found.result, row=row))
