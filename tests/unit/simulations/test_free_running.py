"""Intervals and scores along drawn pictures: made-up positions, and a tiny family."""

from pathlib import Path

import numpy as np
import pytest

from fleet.decoding.accept import Policy
from fleet.prediction import SCORE_NAMES
from fleet.training.metrics import spearman
from simulations.evaluation.captions import Assignment
from simulations.evaluation.decoder import decode
from simulations.evaluation.free_running import holds, look, seen
from simulations.evaluation.methods import Method
from simulations.evaluation.moment import LOCAL
from simulations.evaluation.rules.gates import Gate
from simulations.evaluation.sampling_page import write_sampling
from simulations.evaluation.sampling_rule import SamplingRule
from tests.unit.simulations.families import tiny_family

CAPTIONS = ["a b", "c d"]
OURS = Method("ours", Gate(Policy("entropy", 1.0)), SamplingRule(0.5, 4, 2.0), prefix=2)


def test_figures_are_shares_of_the_positions_behind_the_prefix() -> None:
    scores = np.random.default_rng(0).random((2, 4, len(SCORE_NAMES)), np.float32)
    scores[..., SCORE_NAMES.index("rejection_bound")] = 0.45 + 0.01 * np.arange(4)
    scores[..., SCORE_NAMES.index("entropy")] = np.arange(4)
    near, far = [0.1, 0.2, 0.3, 0.4], [0.2, 0.4, 0.6, 0.8]
    at = {
        "coverage": np.full((2, 4), 0.9, np.float32),
        "distance": np.array([near, near], np.float32),
        "drawn_distance": np.array([far, far], np.float32),
        "differ": np.array([[1, 0, 1, 0], [0, 0, 1, 1]], np.float32),
        "kept": np.array([[1, 1, 0, 0], [1, 1, 1, 0]], np.float32),
        "scores": scores,
    }

    found = holds(OURS, at, np.array([0, 1]))

    assert found.calls == pytest.approx(1 - 5 / 12)  # of six tokens a picture
    assert (found.within_bound.value, found.drawn_within_bound.value) == (1.0, 0.5)
    assert found.distance.value == pytest.approx(0.25)
    assert (found.differ.value, found.kept.value) == (0.5, 0.25)
    assert found.ranks["entropy"].value == pytest.approx(1.0)


def test_the_laws_are_those_that_the_pictures_are_drawn_from() -> None:
    pair, seeds = tiny_family(), [1, 2]
    drawn = decode(pair, OURS, CAPTIONS, seeds)

    at = look(pair, OURS, CAPTIONS, seeds)

    np.testing.assert_array_equal(at["kept"], drawn.decisions[:, 2:] == LOCAL)
    np.testing.assert_array_equal(at["differ"], (drawn.drafts != drawn.own)[:, 2:])
    np.testing.assert_array_equal(at["scores"], drawn.scores[:, 2:])
    # Four codes at most are left of each law.
    assert (at["drawn_distance"] > at["distance"]).any()
    assert (at["coverage"] >= 0).all()
    assert (at["coverage"] <= 1 + 1e-6).all()


def test_what_was_seen_is_kept_and_written(tmp_path: Path) -> None:
    chosen = Assignment(np.arange(2), CAPTIONS, np.zeros(2, bool), group_count=2)
    pair = tiny_family()
    first = seen(pair, OURS, chosen, 2, tmp_path, tmp_path)
    (path,) = tmp_path.glob("seen-*.npz")
    stamp = path.stat().st_mtime_ns

    again = seen(pair, OURS, chosen, 2, tmp_path, tmp_path)
    row = holds(OURS, again, chosen.groups)
    facts = dict.fromkeys(("command", "commit", "family", "pictures", "groups"), "1")
    write_sampling(tmp_path / "page.md", [row], [row], facts)

    assert path.stat().st_mtime_ns == stamp
    np.testing.assert_array_equal(first["differ"], again["differ"])
    text = (tmp_path / "page.md").read_text()
    assert f"| T 0.5, k 4, guidance 2 | {row.calls:.1%} |" in text
    assert f"| ours | T 0.5, k 4, guidance 2 | {row.calls:.1%} |" in text


def test_a_score_that_never_varies_ranks_nothing() -> None:
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
    assert spearman(np.array([1.0, 2.0, 4.0]), np.arange(3.0)) == pytest.approx(1.0)
