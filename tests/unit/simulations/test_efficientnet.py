"""The feature network reads the packaged weights and treats each picture alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fleet.errors import InvalidInputError
from simulations.evaluation.efficientnet import load_network, picture_features


def test_a_picture_has_the_same_features_in_any_batch() -> None:
    network = load_network()
    pictures = np.random.default_rng(1).integers(0, 256, (3, 64, 64, 3), np.uint8)

    together = picture_features(network, pictures, batch=3)
    alone = picture_features(network, pictures, batch=1)

    assert together.shape == (3, 1280)
    np.testing.assert_allclose(together, alone, atol=1e-3)


def test_different_pictures_have_different_features() -> None:
    network = load_network()
    pictures = np.stack([np.full((64, 64, 3), 255, np.uint8), np.zeros((64, 64, 3), np.uint8)])

    white, black = picture_features(network, pictures)

    assert np.abs(white - black).max() > 0.1


def test_foreign_weights_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save({"weight": torch.zeros(1)}, path)

    with pytest.raises(InvalidInputError, match=r"other\.pth holds no EfficientNet-Lite0"):
        load_network(path)
