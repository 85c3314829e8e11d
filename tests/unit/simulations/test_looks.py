"""Training pictures in another look."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from fleet.models.checkpoint import load_tokenizer
from fleet.models.image_tokenizer import to_unit
from fleet.training.budget import Bar
from fleet.training.economy import encode_economically, fit_law
from fleet.training.examples import Examples, load_examples, sample_of_law
from simulations.drift.looks import faded, in_another_look
from tests.unit.models.tiny_family import GRID
from tests.unit.simulations.drifting import work_folder


class _Silent:
    def show(self, fraction: float, figures: str) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Examples]:
    work = work_folder(tmp_path_factory.mktemp("looks") / "work")
    found = load_examples(work)
    count, side = len(found.pictures.captions), 2 * GRID
    pixels = np.random.default_rng(3).integers(0, 256, (count, side, side, 3)).astype(np.uint8)
    split = np.zeros(count, np.uint8)
    split[::4] = 2
    return work, replace(found, pictures=replace(found.pictures, pixels=pixels, split=split))


def test_a_faded_picture_keeps_its_luma_and_the_share_of_its_colour() -> None:
    red = np.array([[200, 0, 0]], np.uint8)

    assert faded(red, 0.0).tolist() == [[60, 60, 60]]
    assert faded(red, 0.5).tolist() == [[130, 30, 30]]
    assert faded(red, 1.0).tolist() == red.tolist()


def test_training_pictures_get_the_codes_of_their_grey_ones_by_the_law_of_coloured_ones(
    examples: tuple[Path, Examples],
) -> None:
    work, before = examples
    tokenizer = load_tokenizer(work / "tokenizer.pt")

    after = in_another_look(before, tokenizer, 0.0, cast(Bar, _Silent()))

    rows, others = before.pictures.rows("train"), before.pictures.rows("test")
    law = fit_law(tokenizer, sample_of_law(before.pictures))
    grey = to_unit(torch.from_numpy(faded(before.pictures.pixels[rows], 0.0)))
    assert np.array_equal(after.tokens[rows, 0], encode_economically(tokenizer, grey, law).numpy())
    assert np.array_equal(after.tokens[others], before.tokens[others])
    assert np.array_equal(after.tokens[:, 1:], before.tokens[:, 1:])
