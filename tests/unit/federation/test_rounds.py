"""Rounds on an in-process grid: they learn, withstand broken nodes, and go on where they were."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

from fleet.federation import client_app, codec, server_app
from fleet.federation.calibrate import needed_stretch
from fleet.federation.collect import Observer, Progress, Stopped
from fleet.federation.head import HeadChange, changed, main_directions, no_change
from fleet.federation.ledger import Commit, FolderLedger
from fleet.federation.local_grid import Fault, LocalGrid
from fleet.federation.plan import Plan
from fleet.federation.rounds import Rounds
from fleet.federation.strategies import TrimmedMean, weighted_trimmed_mean
from fleet.federation.task import Task
from fleet.federation.train import (
    Recipe,
    center_and_radius,
    evaluate,
    train,
    whole_law,
    worst_blocks,
)
from fleet.federation.validate import Score, judge, last_stretch
from fleet.models.interval_head import log_odds
from fleet.training.losses import error_weights, target_log_odds
from tests.unit.federation.toy import (
    PLAN,
    make_node,
    make_nodes,
    toy_head,
    toy_samples,
)


def run(
    folder: Path,
    nodes: dict[int, dict[str, Any]],
    plan: Plan = PLAN,
    fault: Fault = lambda _, message: message,
    **options: Any,
) -> list[Commit]:
    ledger = FolderLedger(folder / "ledger")
    with LocalGrid(client_app.app, nodes, fault=fault) as grid:
        Rounds(grid, Task(toy_head()), plan, ledger, **options).run()
    return ledger.history()


def node_one_is_silent(node: int, message: Message) -> Message | None:
    return None if node == 1 and message.metadata.message_type == "train" else message


def validation_loss(commit: Commit) -> float:
    """On samples that no node has."""
    plan_rank = commit.change["center"].shape[1]
    directions = main_directions(toy_head(), plan_rank)
    fresh = [
        evaluate(HeadChange(toy_head(), directions, commit.change), toy_samples(900 + i))
        for i in range(3)
    ]
    return float(np.mean([each.loss for each in fresh]))


# ── Learning ──────────────────────────────────────────────────────────────────────────────


def test_rounds_bring_the_head_nearer_to_the_cloud(tmp_path: Path) -> None:
    commits = run(tmp_path, make_nodes(tmp_path, range(4)), replace(PLAN, rounds=3))

    losses = [commit.figures["loss_after"] for commit in commits]
    assert [commit.outcome for commit in commits] == ["kept"] * 3
    assert losses[2] < losses[1] < losses[0] < commits[0].figures["loss_before"]
    assert commits[2].figures["tv_after"] < 0.9 * commits[0].figures["tv_before"]
    assert {each.part for each in commits[0].participants} == {"used"}
    assert all(each.bytes_up > 0 < each.bytes_down for each in commits[0].participants)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_change_put_into_the_weights_predicts_the_same(rank: int) -> None:
    head, samples = toy_head(), toy_samples(1, 50)
    directions = main_directions(head, rank)
    change = HeadChange(head, directions, no_change(head, directions))
    train(change, samples, Recipe("inter-dro", 10, 32, 0.02, 0.0, 1))

    merged = changed(head, directions, change.arrays(np.float32))
    bare = HeadChange(merged, directions, no_change(merged, directions))

    assert evaluate(bare, samples).loss == pytest.approx(evaluate(change, samples).loss, rel=1e-4)


def test_a_whole_law_keeps_what_the_hub_sent_and_sums_to_one() -> None:
    samples = toy_samples(1, 20)
    rng = np.random.default_rng(0)
    logits = client_torch().from_numpy(rng.normal(size=(20, 16)).astype(np.float32))

    law = whole_law(samples, logits.log_softmax(dim=-1)).numpy()

    known = np.take_along_axis(law, samples.codes.astype(np.int64), axis=1)
    np.testing.assert_allclose(law.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(known, np.exp(samples.log_probs.astype(np.float32)), rtol=2e-3)


def test_hard_blocks_weigh_more_and_hard_samples_by_themselves_do_not() -> None:
    numbers = np.arange(1, 65 * 32, dtype=np.uint64)
    chance = torch.rand(len(numbers), generator=torch.Generator().manual_seed(1)) * 4
    alike = torch.tensor([0.0, 4.0]).repeat(32 * 32)[: 32 * 32]
    hard = chance + 2.0 * torch.from_numpy((numbers // 32 % 8 == 0).astype(np.float32))

    same = worst_blocks(alike, np.arange(32 * 32, dtype=np.uint64))
    torch.testing.assert_close(same, alike.mean())
    assert worst_blocks(hard, numbers) > hard.mean() + 0.3
    order = np.random.default_rng(1).permutation(len(numbers))
    torch.testing.assert_close(
        worst_blocks(hard, numbers), worst_blocks(hard[order], numbers[order])
    )


def test_radii_too_narrow_or_too_wide_are_stretched_to_cover_nine_tenths() -> None:
    head, samples = toy_head(), toy_samples(1, 400)
    directions = main_directions(head, 4)
    change = HeadChange(head, directions, no_change(head, directions))
    train(change, samples, Recipe("inter-dro", 60, 64, 0.05, 0.0, 1))
    learned = change.arrays(np.float32)

    def covered(stretch: float) -> float:
        merged = changed(head, directions, learned, stretch)
        bare = HeadChange(merged, directions, no_change(merged, directions))
        center, radius = center_and_radius(bare, samples)
        odds, law = log_odds(center), whole_law(samples, center.log_softmax(dim=-1))
        weight = error_weights(law, odds)
        inside = (target_log_odds(law) - odds).abs() <= radius
        return float(((weight * inside).sum() / weight.sum()).detach())

    needed = needed_stretch(change, samples)

    assert covered(needed) == pytest.approx(0.9, abs=0.01)
    for times in (0.7, 1.4):  # a head whose radii are off by that needs so much less or more
        off = changed(head, directions, learned, times * needed)
        bare = HeadChange(off, directions, no_change(off, directions))
        assert needed_stretch(bare, samples) == pytest.approx(1 / times, rel=0.02)


def test_a_result_is_stretched_as_its_last_kept_round_says(tmp_path: Path) -> None:
    commits = run(tmp_path, make_nodes(tmp_path, range(4)), replace(PLAN, rounds=2))
    discarded = replace(commits[-1], outcome="discarded", figures={"stretch": 7.0})

    assert last_stretch([*commits, discarded]) == commits[-1].figures["stretch"]
    assert 0.5 <= commits[-1].figures["stretch"] <= 2
    assert last_stretch([]) == 1


@pytest.mark.parametrize(("claims", "agreed"), [([1.2, 1.3, 1e9], 1.3), ([9.0], 2), ([0.0], 0.5)])
def test_a_node_s_word_moves_no_radius_far(claims: list[float], agreed: float) -> None:
    before = dict.fromkeys(range(len(claims)), Score(2.0, 0.3))
    after = {node: Score(1.0, 0.2, claim) for node, claim in enumerate(claims)}

    assert judge(before, after, None, 0.0).figures["stretch"] == agreed


def client_torch() -> Any:
    import torch

    return torch


def test_training_twice_gives_the_same_bits(tmp_path: Path) -> None:
    first = run(tmp_path / "a", make_nodes(tmp_path, range(3)))
    second = run(tmp_path / "b", make_nodes(tmp_path / "again", range(3)))

    for one, other in zip(first, second, strict=True):
        for name, value in one.change.items():
            np.testing.assert_array_equal(value, other.change[name])


# ── Broken nodes ──────────────────────────────────────────────────────────────────────────


def bend(
    change: Callable[[dict[str, NDArray[Any]], dict[str, Any]], None],
) -> Callable[[Message], Message]:
    def bent(message: Message) -> Message:
        arrays = {
            k: v.copy()
            for k, v in codec.from_record(message.content.array_records["arrays"]).items()
        }
        metrics = dict(message.content.metric_records["metrics"])
        with np.errstate(over="ignore"):
            change(arrays, metrics)
        content = RecordDict({"arrays": codec.to_record(arrays), "metrics": MetricRecord(metrics)})
        message.content.clear()
        message.content.update(content)
        return message

    return bent


def nan(arrays: dict[str, Any], _: Any) -> None:
    arrays["center"][0, 0] = np.nan


def huge(arrays: dict[str, Any], _: Any) -> None:
    arrays["radius"][:] = np.float16(60_000)


def infinite(arrays: dict[str, Any], _: Any) -> None:
    arrays["radius"][:] = np.float64(1e12)


def flipped(arrays: dict[str, Any], _: Any) -> None:
    for value in arrays.values():
        value *= -1


def inflated(_: Any, metrics: dict[str, Any]) -> None:
    metrics["num-examples"] = 10**9


def renamed(arrays: dict[str, Any], _: Any) -> None:
    arrays["centre"] = arrays.pop("center")


BROKEN: dict[int, tuple[Callable[[Message], Message | None], str]] = {
    20: (bend(nan), "center holds 1 numbers that are not finite"),
    21: (bend(huge), "an update of norm"),
    22: (bend(infinite), "not finite"),
    23: (bend(flipped), "against the others"),
    24: (bend(inflated), "claims 1000000000 examples, counted as 87"),
    25: (bend(renamed), "arrays ['centre', 'radius', 'radius_bias'] instead of"),
    26: (lambda _: None, "no answer within 40 s"),
}


def break_nodes(node: int, message: Message) -> Message | None:
    if node not in BROKEN or message.has_error() or "arrays" not in message.content.array_records:
        return message if node != 26 or "about" in message.content.config_records else None
    return BROKEN[node][0](message)


@pytest.mark.parametrize("strategy", ["trimmed-mean", "fedavg", "multikrum", "median"])
def test_a_fifth_of_broken_nodes_changes_little_and_each_is_named(
    tmp_path: Path, strategy: str
) -> None:
    # All but the silent one make the quorum, so that a busy machine leaves nobody out.
    plan = replace(PLAN, strategy=strategy, deadline_s=40.0, quorum=0.96, grace_s=2.0, rounds=1)
    nodes = make_nodes(tmp_path, range(28))

    clean = run(tmp_path / "clean", {n: c for n, c in nodes.items() if n not in BROKEN}, plan)
    broken = run(tmp_path / "broken", nodes, plan, break_nodes)

    assert validation_loss(broken[-1]) < 1.02 * validation_loss(clean[-1])
    for commit in broken:
        reasons = {each.node: each.reason for each in commit.participants}
        for node, (_, reason) in BROKEN.items():
            assert reason in reasons[node]
        used = {each.node for each in commit.participants if each.part == "used"}
        assert used == {*range(28)} - BROKEN.keys() | {24}


def test_an_aggregate_that_is_no_better_is_discarded_with_its_figures(tmp_path: Path) -> None:
    plan = replace(PLAN, rounds=1, least_gain=100.0)

    (commit,) = run(tmp_path, make_nodes(tmp_path, range(3)), plan)

    assert commit.outcome == "discarded"
    assert "the loss changed by" in commit.reason
    assert commit.figures["loss_after"] < commit.figures["loss_before"]
    assert all(not value.any() for value in commit.change.values())


def test_too_few_answers_leave_the_weights_alone(tmp_path: Path) -> None:
    plan = replace(PLAN, least_nodes=3, quorum=0.5, grace_s=8.0)

    commits = run(tmp_path, make_nodes(tmp_path, range(3)), plan, node_one_is_silent)

    assert [each.outcome for each in commits] == ["skipped", "skipped"]
    assert commits[0].reason == "2 answers count, 3 are needed"
    reasons = {each.node: each.reason for each in commits[0].participants}
    assert reasons[1] == "no answer within 60 s"


def test_who_cannot_take_part_is_named(tmp_path: Path) -> None:
    nodes = make_nodes(tmp_path, range(4))
    nodes[5] = make_node(tmp_path / "5", 5, count=87)  # its first block is held out
    nodes[6] = {"folder": str(tmp_path / "nothing")}
    other = make_node(tmp_path / "7", 7)
    head = toy_head()
    replace(head, center=head.center * 2).save(tmp_path / "7" / client_app.HEAD_FILE)
    nodes[7] = other

    (commit,) = run(tmp_path, nodes, replace(PLAN, rounds=1, most_nodes=3))

    parts = {each.node: (each.part, each.reason) for each in commit.participants}
    assert sorted(part for part, _ in parts.values()) == ["set aside"] * 4 + ["used"] * 3
    assert "has 24 samples, 50 are needed" in parts[5][1]
    assert "there are no samples in" in parts[6][1]
    assert "needs a round of its own" in parts[7][1]
    assert any("not drawn: 3 of 4" in reason for _, reason in parts.values())


# ── Time ──────────────────────────────────────────────────────────────────────────────────


def test_a_quorum_gives_the_others_a_grace_only(tmp_path: Path) -> None:
    plan = replace(PLAN, rounds=1, quorum=0.75, grace_s=0.3, deadline_s=600.0)
    phases: list[Progress] = []
    nodes = make_nodes(tmp_path, range(4))

    (commit,) = run(tmp_path, nodes, plan, node_one_is_silent, observer=Observer(phases.append))

    assert commit.outcome == "kept"
    last = [each for each in phases if each.phase == "train"][-1]
    assert (last.asked, last.awaited, last.left_s) == (4, (1,), 0.0)
    assert commit.duration_s < 300


def test_a_stopped_round_is_taken_up_with_the_same_nodes_and_bits(tmp_path: Path) -> None:
    nodes = make_nodes(tmp_path, range(3))
    whole = run(tmp_path / "whole", nodes)
    for stop_at in ("query", "train", "validate"):
        folder = tmp_path / stop_at
        seen: list[str] = []

        def stopped(seen: list[str] = seen, stop_at: str = stop_at) -> bool:
            return bool(seen) and seen[-1] == f"2 {stop_at}"

        def watch(progress: Progress, seen: list[str] = seen) -> None:
            seen.append(f"{progress.number} {progress.phase}")

        with pytest.raises(Stopped, match="round 2 was stopped"):
            run(folder, nodes, observer=Observer(watch, stopped))
        commits = run(folder, nodes)

        for one, other in zip(commits, whole, strict=True):
            for name, value in one.change.items():
                np.testing.assert_array_equal(value, other.change[name])


@pytest.mark.parametrize("strategy", ["fedadam", "fedprox", "trimmed-mean"])
def test_a_run_in_two_processes_is_the_run_in_one(tmp_path: Path, strategy: str) -> None:
    nodes = make_nodes(tmp_path, range(3))
    plan = replace(PLAN, strategy=strategy)

    whole = run(tmp_path / "whole", nodes, plan)
    run(tmp_path / "halves", nodes, replace(plan, rounds=1))
    halves = run(tmp_path / "halves", nodes, plan)

    assert whole[-1].outcome == "kept"
    for name, value in whole[-1].change.items():
        np.testing.assert_array_equal(value, halves[-1].change[name])


# ── Strategies ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("count", "trim"), [(5, 0.2), (10, 0.2), (10, 0.3), (3, 0.0)])
def test_with_equal_weights_the_trimmed_mean_is_flowers(count: int, trim: float) -> None:
    values = np.random.default_rng(0).normal(size=(count, 4, 3)).astype(np.float32)

    mine = weighted_trimmed_mean(values, np.ones(count), trim)

    theirs = flower.fedtrimmedavg.trim_mean(values, trim)
    np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_a_weighted_mean_without_trimming_is_the_mean() -> None:
    values = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    weights = np.array([1.0, 2.0, 3.0, 4.0])

    mean = weighted_trimmed_mean(values, weights, 0.0)

    np.testing.assert_allclose(mean, weights @ values / 10, atol=1e-6)


def test_less_than_the_trimmed_weight_cannot_move_the_mean_beyond_the_others() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(10, 50)).astype(np.float32)
    weights = np.array([1.9, *rng.uniform(0.8, 1.2, 9)])  # the first has less than a fifth
    weights[0] = 0.19 / 0.81 * weights[1:].sum()
    values[0] = 1e6

    mean = weighted_trimmed_mean(values, weights, 0.2)

    assert (mean <= values[1:].max(axis=0)).all()


def test_the_trimmed_mean_asks_like_fedavg() -> None:
    assert TrimmedMean.configure_train is flower.FedAvg.configure_train


def test_private_rounds_count_what_they_spend(tmp_path: Path) -> None:
    plan = replace(PLAN, strategy="fedavg", noise=0.5, clip=2.0, rounds=2, least_gain=-100.0)
    nodes = make_nodes(tmp_path, range(4))

    run(tmp_path / "a", nodes, replace(plan, rounds=1))
    commits = run(tmp_path / "a", nodes, plan)
    whole = run(tmp_path / "b", nodes, plan)

    assert commits[-1].accountant is not None
    assert sum(each["count"] for each in commits[-1].accountant["compositions"]) == 2
    for name, value in commits[-1].change.items():
        np.testing.assert_array_equal(value, whole[-1].change[name])


def test_a_private_round_needs_all_of_its_nodes(tmp_path: Path) -> None:
    plan = replace(PLAN, strategy="fedavg", noise=0.5, rounds=1, quorum=0.6, grace_s=1.0)

    (commit,) = run(tmp_path, make_nodes(tmp_path, range(3)), plan, node_one_is_silent)

    assert (commit.outcome, commit.reason) == (
        "skipped",
        "a private round needs an answer of each of its nodes",
    )
    assert commit.accountant is None  # nothing was released


# ── The apps themselves ───────────────────────────────────────────────────────────────────


def test_the_server_app_runs_what_its_configuration_names(tmp_path: Path) -> None:
    toy_head().save(tmp_path / "head.npz")
    config = {
        "head": str(tmp_path / "head.npz"),
        "ledger": str(tmp_path / "ledger"),
        "holdout": make_node(tmp_path / "holdout", 99)["folder"],
        "rounds": 1,
        "rank": 4,
        "steps": 8,
        "rate": 0.05,
        "least-samples": 50,
    }
    with LocalGrid(client_app.app, make_nodes(tmp_path, range(3))) as grid:
        server_app.app(grid=grid, context=Context(7, 1, {}, RecordDict(), config))

    (commit,) = FolderLedger(tmp_path / "ledger").history()
    assert commit.outcome == "kept"
    assert commit.figures["holdout_after"] < commit.figures["holdout_before"]
