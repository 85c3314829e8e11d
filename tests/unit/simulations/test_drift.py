"""The experiment on drifts: what it draws, what it learns from, what its figures say."""

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from cloud_hub.engine.checks import Looked, sample
from cloud_hub.engine.luck import Luck
from cloud_hub.engine.requests import Run
from fleet.errors import InvalidInputError
from fleet.federation.samples import HELD_OUT_BLOCK, SampleRing
from fleet.models.head_weights import HeadWeights
from fleet.training.pictures import load_pictures
from simulations.drift.figures import DeviceFigures, lines
from simulations.drift.heads import head_of, with_head
from simulations.drift.lead import of_the_lowest, of_the_lowest_elsewhere
from simulations.drift.learning import keep_samples
from simulations.drift.order import CONDITIONS, LEARNED, Condition
from simulations.drift.publish import publish
from simulations.drift.seen import draw_and_look, look_again
from simulations.drift.study import Study
from simulations.drift.tastes import Wishes, joined, tastes
from simulations.evaluation.family import load_family
from tests.unit.simulations.drifting import PLAN, SHIPPED, SIZE, tiny_order, work_folder

pytestmark = pytest.mark.timeout(400)  # the first test that looks at rows runs the experiment

WISHES = Wishes(("google: red big heart", "twitter: blue old cats"), (5, 6))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return work_folder(tmp_path_factory.mktemp("drift") / "work")


@pytest.fixture(scope="module")
def studied(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tiny_order(work, tmp_path_factory.mktemp("drift") / "out"))


@pytest.fixture(scope="module")
def rows(studied: Study) -> list[DeviceFigures]:
    return studied.run()


def figures(rows: list[DeviceFigures], arm: str, condition: Condition, name: str) -> float:
    chosen = [row for row in rows if (row.arm, row.condition) == (arm, condition)]
    return float(np.mean([getattr(row, name) for row in chosen]))


# ── What is drawn ─────────────────────────────────────────────────────────────────────────


def test_a_device_drifts_to_one_style_and_theme_and_is_measured_on_other_captions(
    work: Path,
) -> None:
    found = tastes(load_pictures(work), 4, 10, 5, seed=1)

    assert [each.name for each in found] == [
        "google: cats",
        "twitter: heart",
        "google: cats",
        "twitter: heart",
    ]
    for each in found:
        style, theme = each.name.split(": ")
        after = each.learned_after.captions + each.measured_after.captions
        assert all(text.startswith(f"{style}:") and theme in text for text in after)
        assert len({text.split(":")[0] for text in each.learned_before.captions}) == 2
        for learned, measured in (
            (each.learned_before, each.measured_before),
            (each.learned_after, each.measured_after),
        ):
            assert not set(learned.captions) & set(measured.captions)
    seeds = [
        s for each in found for w in (each.learned_after, each.measured_after) for s in w.seeds
    ]
    assert len(set(seeds)) == len(seeds)


def test_how_many_pictures_are_measured_changes_no_other_picture(work: Path) -> None:
    few, many = (tastes(load_pictures(work), 4, 10, count, seed=1) for count in (5, 8))

    for less, more in zip(few, many, strict=True):
        assert more.learned_before == less.learned_before
        assert more.learned_after == less.learned_after
        for short, long in (
            (less.measured_before, more.measured_before),
            (less.measured_after, more.measured_after),
        ):
            assert long.captions[:5] == short.captions
            assert long.seeds[:5] == short.seeds


def test_captions_without_themes_are_told_of(work: Path) -> None:
    pictures = replace(load_pictures(work), captions=[f"google: {n}" for n in range(64)])

    with pytest.raises(InvalidInputError, match="no style has a theme"):
        tastes(pictures, 2, 1, 1, seed=1)


def test_another_look_with_the_same_head_sees_what_was_seen(work: Path) -> None:
    family = load_family(work)

    seen, states = draw_and_look(family, SHIPPED.method, WISHES, keeps_states=True)
    assert states is not None
    match, distance, covered = look_again(states, head_of(family), SHIPPED.sampling)

    assert seen.asked.shape == (2, family.tokens - SHIPPED.prefix)
    assert 0.2 < seen.asked.mean() < 0.8
    assert (match == seen.match).mean() > 0.95  # the states are in half precision
    assert np.abs(distance - seen.tv).mean() < 0.02
    assert np.abs(covered - seen.covered).mean() < 0.02


def test_a_family_with_another_head_drafts_by_it(work: Path) -> None:
    family = load_family(work)
    head = head_of(family)
    silent = HeadWeights(0 * head.center, head.radius_down, 0 * head.radius_up, head.radius_bias)

    seen, _ = draw_and_look(with_head(family, silent), SHIPPED.method, WISHES)
    before, _ = draw_and_look(family, SHIPPED.method, WISHES)

    assert np.array_equal(head_of(with_head(family, silent)).center, silent.center)
    assert not np.array_equal(head_of(family).center, silent.center)
    assert np.abs(seen.tv - before.tv).max() > 0.01


def test_samples_are_those_of_which_a_hub_would_tell(work: Path, tmp_path: Path) -> None:
    family = load_family(work)
    seen, states = draw_and_look(family, SHIPPED.method, WISHES, keeps_states=True)
    assert states is not None

    count = keep_samples(tmp_path / "node", seen, states, 0.5, head_of(family), "network")

    ring = SampleRing.open(tmp_path / "node").read()
    assert count == len(ring)
    tokens, at = [], 0
    for row, seed in enumerate(WISHES.seeds):
        last = np.flatnonzero(seen.asked[row])[-1] + 1
        run = Run(states.own[row, :last], ~seen.asked[row, :last], np.zeros((last, 48), np.int8))
        looked = Looked(
            SHIPPED.prefix, run, np.ones(last, bool), states.cloud[row, :last].astype(np.float32)
        )
        chosen = sample(_Session(seed, family.tokens), looked, 0.5)  # type: ignore[arg-type]
        assert chosen is not None
        places = chosen.positions - SHIPPED.prefix
        tokens += states.own[row, places].tolist()
        there = ring[at : at + len(places)]
        assert np.array_equal(there.hidden, states.hidden[row, places])
        assert np.array_equal(there.codes[:, 0], states.cloud[row, places].argmax(axis=-1))
        at += len(places)
    assert ring.token.tolist() == tokens


class _Session:
    """As much of a session as the choice of checks looks at."""

    unchecked = None
    key = sampling = None

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.luck = seed, Luck(seed, size)


# ── The whole ─────────────────────────────────────────────────────────────────────────────


def test_rounds_bring_the_device_nearer_to_a_cloud_that_moved(rows: list[DeviceFigures]) -> None:
    assert len(rows) == 2 * len(CONDITIONS) * SIZE.devices
    for arm in ("cloud", "captions"):
        for condition in LEARNED:
            tv = figures(rows, arm, condition, "same_tv")
            assert tv < 0.95 * figures(rows, arm, "no rounds", "same_tv")
            assert figures(rows, arm, condition, "tv") < figures(rows, arm, "no rounds", "tv")
    # The arms begin with the same pictures; both have another cloud model, one other captions too.
    assert figures(rows, "cloud", "before", "match") == figures(rows, "captions", "before", "match")
    assert figures(rows, "cloud", "no rounds", "tv") != figures(rows, "captions", "no rounds", "tv")
    assert figures(rows, "cloud", "no rounds", "tv") != figures(rows, "cloud", "before", "tv")


def test_devices_that_are_drawn_together_draw_what_each_draws_alone(work: Path) -> None:
    family = load_family(work)
    one, other = Wishes(WISHES.captions[:1], (5,)), Wishes(WISHES.captions[1:], (6,))

    both, _ = draw_and_look(family, SHIPPED.method, joined([one, other]))
    alone, _ = draw_and_look(family, SHIPPED.method, other)

    assert np.array_equal(both.rows(slice(1, 2)).match, alone.match)
    assert np.allclose(both.rows(slice(1, 2)).tv, alone.tv, atol=1e-4)


def test_what_is_on_disk_is_not_done_again_and_what_is_lost_comes_out_the_same(
    studied: Study, rows: list[DeviceFigures]
) -> None:
    folder = studied.folders["captions"]
    lost = folder.head("inter-dro")
    kept, drawn = lost.read_bytes(), folder.seen("inter-dro", 1)
    stamp = drawn.stat().st_mtime_ns
    lost.unlink()

    again = Study(studied.order).run()

    assert again == rows
    assert lost.read_bytes() == kept
    assert drawn.stat().st_mtime_ns == stamp


def test_a_folder_of_another_experiment_is_left_alone(
    studied: Study, rows: list[DeviceFigures]
) -> None:
    assert rows
    other = replace(studied.order, plan=replace(PLAN, rounds=3))

    with pytest.raises(InvalidInputError, match="name another folder"):
        Study(other)


def test_the_page_has_a_line_a_condition_with_plot_and_columns_beside_it(
    studied: Study, rows: list[DeviceFigures], tmp_path: Path
) -> None:
    text = publish(studied, rows, tmp_path / "pages" / "drift.md", "python -m simulations drift")

    assert text == (tmp_path / "pages" / "drift.md").read_text(encoding="utf-8")
    for name in ("before the drift", "rounds, Inter-DRO", "trained in one place"):
        assert text.count(f"| {name}") == 2
    assert "of 2 rounds kept, held-out loss" in text
    assert "| new cloud | 4 steps further at 2 of its rates, pictures as they are |" in text
    ours, theirs = (studied.matches("captions", each) for each in LEARNED[:2])
    for lead in (of_the_lowest, of_the_lowest_elsewhere):
        assert f"{lead(ours, theirs, 0.1)} | {lead(ours, theirs, 0.2)} |" in text
    assert ours.mean() == pytest.approx(figures(rows, "captions", "inter-dro", "match"))
    assert (tmp_path / "pages" / "drift.png").read_bytes().startswith(b"\x89PNG")
    columns = duckdb.read_parquet(str(tmp_path / "pages" / "drift.parquet"))
    assert columns.shape == (len(rows), len(DeviceFigures.__slots__))


def test_samples_are_split_into_those_trained_on_and_those_held_out(
    studied: Study, rows: list[DeviceFigures]
) -> None:
    assert rows
    for device in range(SIZE.devices):
        training, held_out = SampleRing.open(studied.folders["cloud"].node(device)).read().split()
        assert len(training) >= PLAN.least_samples
        assert len(held_out) == HELD_OUT_BLOCK - 1  # samples are counted from 1


# ── The arithmetic of a line ──────────────────────────────────────────────────────────────


def row(condition: Condition, device: int, match: float) -> DeviceFigures:
    rest = dict.fromkeys(DeviceFigures.__slots__[5:], 0.5) | {"match": match}
    return DeviceFigures("cloud", condition, device, "google: cats", 1, **rest)


def test_what_is_restored_is_the_gain_over_the_fall() -> None:
    shares: dict[Condition, list[float]] = {
        "before": [0.8, 0.7, 0.9],
        "no rounds": [0.6, 0.5, 0.7],
        "inter-dro": [0.7, 0.6, 0.8],
        "distillation": [0.65, 0.5, 0.75],
        "central": [0.8, 0.7, 0.9],
    }
    given = [row(c, d, value) for c, values in shares.items() for d, value in enumerate(values)]

    found = {line.condition: line for line in lines(given, "cloud")}

    assert found["inter-dro"].restored == pytest.approx(0.5)
    assert found["central"].restored == pytest.approx(1.0)
    assert found["inter-dro"].worst == pytest.approx(0.6)
    assert found["distillation"].worst_restored == pytest.approx(0.0)
    assert found["distillation"].gain == pytest.approx(0.1 / 3)
    assert np.isnan(found["before"].restored)


def test_where_nothing_fell_nothing_is_said_to_be_restored() -> None:
    shares: dict[Condition, list[float]] = {key: [0.5, 0.6] for key in CONDITIONS}
    shares["before"] = [0.6, 0.5]
    given = [row(c, d, value) for c, values in shares.items() for d, value in enumerate(values)]

    found = lines(given, "cloud")

    assert all(np.isnan(line.restored) for line in found)


def test_a_lead_of_every_picture_is_the_lead_of_the_lowest_and_sure() -> None:
    theirs = np.random.default_rng(1).random((20, 6))

    for lead in (of_the_lowest, of_the_lowest_elsewhere):
        for share in (0.1, 1.0):
            found = lead(theirs + 0.1, theirs, share)
            assert found.value == pytest.approx(0.1)
            assert found.error < 1e-12
    assert str(of_the_lowest(theirs + 0.1, theirs, 0.1)) == "+10.00 ± 0.00"


def test_a_lead_on_the_devices_that_are_worse_off_is_found_both_ways() -> None:
    rng = np.random.default_rng(1)
    theirs = np.where(np.arange(40)[:, None] < 4, 0.3, 0.7) + 0.05 * rng.standard_normal((40, 16))
    ours = theirs + np.where(np.arange(40)[:, None] < 4, 0.05, 0.0)

    for lead in (of_the_lowest, of_the_lowest_elsewhere):
        assert lead(ours, theirs, 0.1).value == pytest.approx(0.05)
        assert lead(ours, theirs, 1.0).value == pytest.approx(0.005)


def test_chance_that_makes_a_device_the_lowest_does_not_score_it_elsewhere() -> None:
    rng = np.random.default_rng(1)
    theirs = 0.7 + 0.05 * rng.standard_normal((200, 8))
    ours = 0.7 + 0.15 * rng.standard_normal((200, 8))  # as good, and scattered more

    assert of_the_lowest(ours, theirs, 0.1).value < -0.04
    elsewhere = of_the_lowest_elsewhere(ours, theirs, 0.1)
    assert abs(elsewhere.value) < 3 * elsewhere.error


def test_a_lead_says_how_far_it_is_from_what_another_fleet_would_show() -> None:
    rng, leads, errors = np.random.default_rng(1), [], []
    for _ in range(20):
        theirs = rng.random((40, 4))
        ours = theirs + 0.02 + 0.1 * rng.standard_normal((40, 4))
        found = of_the_lowest_elsewhere(ours, theirs, 0.1)
        leads.append(found.value)
        errors.append(found.error)

    assert np.mean(leads) == pytest.approx(0.02, abs=0.02)
    assert np.std(leads) == pytest.approx(np.mean(errors), rel=0.5)
