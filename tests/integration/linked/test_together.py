"""A LlamaGen cloud and its drafter draw together over MQTT, as hub and agent run them."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from cloud_hub import app as hub_app
from cloud_hub.settings import HubSettings
from fleet.errors import BundleError, InvalidInputError, TransportError
from fleet.models.bundle import Bundle
from fleet.models.conditions import Condition
from fleet.models.image_tokenizer import to_pixels
from fleet.models.linked import linked_tokenizer, load_linked
from fleet.models.torch_model import INTERVAL_FEATURE
from fleet.protocol.condition import condition_bytes
from fleet.training.drafter_adapter import load_adapter
from fleet.training.sampling import SamplingRule
from fleet.transport.embedded import embedded_broker
from simulations.processes import free_port
from tests.integration.linked.family import make_bundle
from tests.integration.linked.pair import agent_on, cloud_picture, hub_on, made
from tests.unit.models.llamagen_files import GRID
from tests.unit.models.tiny_linked import CAPTIONS, add_captions, add_classes, add_prompts

TOKENS = GRID * GRID

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a class-conditional cloud model, with a device bundle of its own."""
    work = tmp_path_factory.mktemp("classes")
    folder = add_classes(work)
    make_bundle(work, folder, [str(number % 10) for number in range(20)])
    return folder


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that reads features of captions, with a bundle that has no words."""
    work = tmp_path_factory.mktemp("captions")
    folder = add_captions(work)
    make_bundle(work, folder, list(CAPTIONS) * 5, "--precision", "float32")
    return folder


async def test_a_caption_reaches_the_device_once_and_stays_there(
    reader: Path, tmp_path: Path
) -> None:
    first, second = CAPTIONS[:2]
    state = tmp_path / "node"
    async with embedded_broker(free_port()) as broker:
        async with hub_on(broker, reader, tmp_path / "hub"):
            # All of a picture comes with the answer to its opening: nothing else is counted.
            async with agent_on(broker, reader, state, prefix_tokens=TOKENS) as running:
                exact = await made(running, first, "verify-all", seed=5)
                again = await made(running, first, "verify-all", seed=5)
                sampling = running.manifest.sampling
            async with agent_on(broker, reader, state) as running:
                shared = await made(running, second, "ciar", seed=6)
                with pytest.raises(TransportError, match="captions, but not of this one"):
                    await made(running, "a dog", "ciar", seed=7)
        async with agent_on(broker, reader, state, outage_patience_s=0.5) as running:
            alone = await made(running, first, "ciar", seed=8)
            with pytest.raises(TransportError, match="did not answer"):
                await made(running, CAPTIONS[2], "ciar", seed=8)
            with pytest.raises(TransportError, match="draw this one with the hub first"):
                await made(running, CAPTIONS[2], "device-only", seed=8)

    cloud = load_linked(reader)
    pair = cloud.condition_pair(cloud.captions.encode(first))
    assert isinstance(pair, Condition)
    wanted = cloud_picture(cloud.engine.transformer, pair, sampling, seed=5)
    assert exact.picture.tokens.tolist() == again.picture.tokens.tolist() == wanted
    spared = exact.meter.bytes_down - again.meter.bytes_down
    assert condition_bytes(64) < spared < condition_bytes(64) + 40
    assert shared.fallback == ""
    assert alone.picture.tally.local + alone.picture.tally.unverified == TOKENS
    assert len(list((state / "told").iterdir())) == 2


async def test_a_cloud_of_classes_and_its_drafter_draw_together(
    model: Path, tmp_path: Path
) -> None:
    async with (
        embedded_broker(free_port()) as broker,
        hub_on(broker, model, tmp_path / "hub"),
        agent_on(broker, model, tmp_path / "node") as running,
    ):
        exact = await made(running, "class 3", "verify-all", seed=5)
        shared = [await made(running, str(seed), "ciar", seed=seed) for seed in range(8)]
        alone = await made(running, "3", "device-only", seed=5)
        sampling = running.manifest.sampling

    cloud = load_linked(model)
    pair = cloud.condition_pair(cloud.captions.encode("3"))
    assert isinstance(pair, Condition)
    wanted = cloud_picture(cloud.engine.transformer, pair, sampling, seed=5)
    assert exact.picture.tokens.tolist() == wanted
    tallies = [outcome.picture.tally for outcome in shared]
    assert {outcome.fallback for outcome in shared} == {""}
    assert not any(outcome.order.use_features for outcome in shared)
    assert sum(tally.local for tally in tallies) > TOKENS
    assert sum(tally.verified for tally in tallies) > 0
    assert alone.picture.tally.local == TOKENS
    with torch.inference_mode():
        pixels = to_pixels(linked_tokenizer(model).decode(torch.tensor([wanted])))[0]
    assert np.abs(exact.image.astype(int) - pixels.numpy().astype(int)).max() <= 1


@pytest.mark.parametrize("kind", ["chameleon", "janus"])
async def test_a_cloud_of_prompts_and_its_drafter_draw_together(
    tmp_path: Path, kind: Literal["chameleon", "janus"]
) -> None:
    pytest.importorskip("tokenizers")
    folder, state = add_prompts(tmp_path, kind), tmp_path / "node"
    before = load_linked(folder).version
    captions = ["a red heart", "a blue heart", "blue", "red"]
    make_bundle(tmp_path, folder, captions * 5, "--precision", "float32", adapted=True)
    cloud = load_linked(folder)
    async with embedded_broker(free_port()) as broker, hub_on(broker, folder, tmp_path / "hub"):
        async with agent_on(broker, folder, state, prefix_tokens=cloud.tokens) as running:
            exact = await made(running, captions[0], "verify-all", seed=5)
            sampling = running.manifest.sampling
        async with agent_on(broker, folder, state) as running:
            shared = [await made(running, captions[seed % 4], "ciar", seed) for seed in range(8)]
            alone = await made(running, captions[0], "device-only", seed=5)

    pair = cloud.condition_pair(cloud.captions.encode(captions[0]))
    wanted = cloud_picture(cloud.engine.transformer, pair, sampling, seed=5)
    assert exact.picture.tokens.tolist() == wanted
    assert {outcome.fallback for outcome in shared} == {""}
    assert all(outcome.order.use_features for outcome in shared)
    tallies = [outcome.picture.tally for outcome in shared]
    assert sum(tally.local for tally in tallies) > 0
    assert sum(tally.verified for tally in tallies) > 0
    assert alone.picture.tally.local == cloud.tokens
    assert len(list((state / "told").iterdir())) == len(captions)
    # The cloud reads the intervals of what was kept, so it is another model than before.
    manifest = Bundle.open(folder / "device", folder / "signing.pub").manifest
    assert manifest.has_features
    assert manifest.cloud_version == cloud.version != before
    assert cloud.interval_feature.w_out.weight.abs().max() > 0
    with pytest.raises(InvalidInputError, match="was trained for guidance 2, temperature 1"):
        load_adapter(tmp_path, cloud, SamplingRule(3.0))
    (folder / INTERVAL_FEATURE).write_bytes(b"something else")
    with pytest.raises(BundleError, match="is not what was exported: add the model again"):
        load_linked(folder)


def test_the_bundle_says_how_its_tokens_are_drawn(model: Path) -> None:
    manifest = Bundle.open(model / "device", model / "signing.pub").manifest

    assert manifest.family == "tiny-classes"
    assert manifest.cloud_version == load_linked(model).version
    assert (manifest.layers, manifest.heads, manifest.width) == (2, 4, 64)
    assert manifest.sampling.guidance == 2.0
    assert manifest.threshold > 0
    assert not manifest.has_features
    assert hub_app.device_bundle(model).manifest == manifest


def test_a_hub_refuses_a_bundle_of_another_cloud(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "family": "other"}))
    (tmp_path / "device").symlink_to(model / "device")
    (tmp_path / "signing.pub").symlink_to(model / "signing.pub")

    with pytest.raises(BundleError, match="was made with"):
        hub_app.open_hub(HubSettings(data_dir=tmp_path / "hub", model=tmp_path))
