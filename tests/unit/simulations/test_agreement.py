"""The caption scorer learns which features go with which words, and is read back from disk."""

from pathlib import Path

import numpy as np

from fleet.models.caption import CaptionVocabulary
from simulations.evaluation.agreement import train

COLOURS, SHAPES = ("red", "green", "blue", "white"), ("ball", "box", "star", "ring", "cone")


def pictures(seed: int) -> tuple[np.ndarray, list[str]]:
    """Features in which each word of the caption leaves its own mark."""
    rng = np.random.default_rng(seed)
    marks = np.random.default_rng(0).normal(size=(len(COLOURS + SHAPES), 1280))
    features, captions = [], []
    for colour in range(len(COLOURS)):
        for shape in range(len(SHAPES)):
            own = marks[colour] + marks[len(COLOURS) + shape]
            features.append(own + 0.5 * rng.normal(size=1280))
            captions.append(f"{COLOURS[colour]} {SHAPES[shape]}")
    return np.array(features, np.float32), captions


def test_it_finds_the_captions_of_new_pictures(tmp_path: Path) -> None:
    features, captions = pictures(1)
    vocabulary = CaptionVocabulary.from_captions(captions)

    judge = train(tmp_path / "scorer.pt", vocabulary, np.tile(features, (3, 1)), captions * 3, 80)
    found = judge.retrieval(*pictures(2))

    assert found.among == 20
    assert found.first > 0.8
    assert found.five > 0.95

    again = train(tmp_path / "scorer.pt", vocabulary, features[:0], [])
    assert again.retrieval(*pictures(2)) == found


def test_pictures_of_other_captions_are_not_found(tmp_path: Path) -> None:
    features, captions = pictures(1)
    vocabulary = CaptionVocabulary.from_captions(captions)
    judge = train(tmp_path / "scorer.pt", vocabulary, features, captions, 40)

    wrong = judge.retrieval(np.roll(features, 7, axis=0), captions)

    assert wrong.first < 0.2
