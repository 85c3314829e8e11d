"""What a hub loads: a cloud model that fits the signed bundle beside it."""

from pathlib import Path

import pytest

from cloud_hub.app import open_hub
from cloud_hub.settings import EngineSettings, HubSettings
from fleet.errors import BundleError, InvalidInputError
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, write_bundle
from fleet.models.signing import generate_key
from fleet.models.torch_model import TRANSFORMER
from fleet.protocol.messages import Sampling
from tests.integration.cloud_hub.model_folder import write_model

pytestmark = pytest.mark.timeout(120)  # torch


def settings(family: Path, cache_mib: int = 8) -> HubSettings:
    engine = EngineSettings(cache_mib=cache_mib, threads=1)
    return HubSettings(data_dir=family / "data", model=family / CLOUD_FOLDER, engine=engine)


def write_device(family: Path, cloud_version: str) -> None:
    """A signed bundle that names its cloud model."""
    fields = {
        "family": "tiny",
        "cloud_version": cloud_version,
        "grid": 4,
        "picture_size": 16,
        "vocab_size": 40,
        "caption_positions": 16,
        "layers": 1,
        "heads": 1,
        "head_dim": 8,
        "sampling": Sampling(temperature=1, top_k=0, guidance=2),
        "score": "spread",
        "thresholds": {"spread": 0.3},
        "budget": 0.3,
        "prefix_tokens": 1,
        "feature_scale": (1.0,) * 48,
    }
    generate_key(family / "signing.key", family / PUBLIC_KEY)
    write_bundle(family / DEVICE_FOLDER, fields, {"step.onnx": b""}, family / "signing.key")


def test_the_memory_for_the_cache_gives_the_pictures_at_a_time(tmp_path: Path) -> None:
    write_model(tmp_path / CLOUD_FOLDER)

    hub = open_hub(settings(tmp_path))

    # 2 rows of 32 wide x (2 layers x (keys, values) x 32 cells + a sketch of 16 places) x 4 bytes
    assert hub.runner.slots == (8 << 20) // (2 * 32 * (2 * 2 * 32 + 16) * 4)
    assert (hub.service.positions, hub.identity.family) == (16, "tiny")
    hub.close()


def test_a_cloud_model_that_is_not_its_bundles_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / CLOUD_FOLDER)
    right = open_hub(settings(tmp_path))
    write_device(tmp_path, right.identity.cloud_version)
    open_hub(settings(tmp_path)).close()
    right.close()
    (tmp_path / CLOUD_FOLDER / "captions.json").write_text('{"words": ["<pad>", "<unk>"]}')

    with pytest.raises(BundleError, match="the bundle beside it was made with"):
        open_hub(settings(tmp_path))


def test_weights_that_are_cut_off_are_named(tmp_path: Path) -> None:
    write_model(tmp_path / CLOUD_FOLDER)
    weights = tmp_path / CLOUD_FOLDER / TRANSFORMER
    weights.write_bytes(weights.read_bytes()[:-100])

    with pytest.raises(BundleError, match=TRANSFORMER):
        open_hub(settings(tmp_path))


def test_a_cache_too_small_for_one_picture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / CLOUD_FOLDER)
    monkeypatch.setattr("cloud_hub.engine.torch_runner._MIB", 1)

    with pytest.raises(InvalidInputError, match=r"engine\.cache_mib = 8 holds no session"):
        open_hub(settings(tmp_path))
