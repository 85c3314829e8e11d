"""What comes out of real processes is what the definition says, whatever lies between them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from edge_agent.client import EdgeClient
from fleet.decoding.accept import Policy, device_only, verify_all
from fleet.prediction import ScoreName
from fleet.protocol.arrays import unpack_scores
from fleet.transport.base import Inbound
from fleet.transport.broker import BrokerSettings
from fleet.transport.mqtt import connect
from simulations.processes import Program
from simulations.site import Site, device
from tests.end_to_end.conftest import PATIENT
from tests.end_to_end.records import story
from tests.end_to_end.reference import LOCAL, PREFIX, bundle, reference

CAPTION, SEED = "google: red heart", 7

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.usefixtures("tablet")
def test_verify_all_is_the_cloud_only_picture(shared: Site, models: Path) -> None:
    prefix = bundle(models).manifest.prefix_tokens
    expected = reference(models, CAPTION, SEED, verify_all(), prefix)

    made = EdgeClient(shared.state("tablet")).generate(CAPTION, seed=SEED, policy="verify-all")

    assert made.fallback == ""
    assert (made.prefix, made.local) == (prefix, 0)
    np.testing.assert_array_equal(made.image, expected.image)


@pytest.mark.parametrize(
    ("link", "window", "in_flight"),
    [("none", 1, 1), ("4g", 16, 4), ("4g", 64, 8), ("wifi", 5, 2)],
)
def test_the_picture_depends_on_neither_window_nor_link(
    shared: Site, models: Path, link: str, window: int, in_flight: int
) -> None:
    manifest = bundle(models).manifest
    threshold, prefix = manifest.thresholds["entropy"], manifest.prefix_tokens
    expected = reference(models, CAPTION, SEED, Policy("entropy", threshold), prefix)
    name = f"device-{link}-{window}"

    with device(
        shared,
        name,
        link,
        **PATIENT,
        EDGE_AGENT_GENERATION__SCORE="entropy",
        EDGE_AGENT_GENERATION__THRESHOLD=repr(threshold),
        EDGE_AGENT_GENERATION__WINDOW=str(window),
        EDGE_AGENT_GENERATION__IN_FLIGHT=str(in_flight),
    ):
        made = EdgeClient(shared.state(name)).generate(CAPTION, seed=SEED)
        told = story(shared, made.generation_id)

    assert made.fallback == ""
    assert made.corrected > 5
    assert made.local > 50
    np.testing.assert_array_equal(np.frombuffer(told.decisions, np.uint8), expected.decisions)
    np.testing.assert_array_equal(made.image, expected.image)


@pytest.mark.usefixtures("tablet")
def test_an_injected_prefix_of_all_tokens_is_verify_all(shared: Site, models: Path) -> None:
    tokens = bundle(models).manifest.tokens
    settings = {**PATIENT, "EDGE_AGENT_GENERATION__PREFIX_TOKENS": str(tokens)}
    expected = EdgeClient(shared.state("tablet")).generate(CAPTION, seed=SEED, policy="verify-all")

    with device(shared, "all-prefix", **settings):
        made = EdgeClient(shared.state("all-prefix")).generate(CAPTION, seed=SEED)
        told = story(shared, made.generation_id)

    assert made.prefix == tokens
    assert set(told.decisions) == {PREFIX}
    np.testing.assert_array_equal(made.image, expected.image)


@pytest.mark.usefixtures("tablet")
async def test_device_only_sends_nothing_and_is_the_device_alone(
    shared: Site, models: Path
) -> None:
    expected = reference(models, CAPTION, SEED, device_only(), 0)
    client = EdgeClient(shared.state("tablet"))
    broker = BrokerSettings(host="127.0.0.1", port=shared.port)

    heard: list[str] = []

    async def listen(requests: AsyncIterator[Inbound]) -> None:
        async for request in requests:
            heard.append(request.topic)  # noqa: PERF401 - as they come

    async with (
        connect(broker, client_id="listener", will=None) as listener,
        listener.subscribe("fleet/v1/d/+/rq/#", qos=0, limit=1000) as requests,
        asyncio.TaskGroup() as group,
    ):
        listening = group.create_task(listen(requests), name="listen")
        made = await asyncio.to_thread(client.generate, CAPTION, seed=SEED, policy="device-only")
        heard_of_device_only = len(heard)
        await asyncio.to_thread(client.generate, CAPTION, seed=SEED, policy="verify-all")
        listening.cancel()

    assert heard_of_device_only == 0
    assert heard  # of the other picture: the listener did listen
    assert (made.bytes_up, made.bytes_down, made.round_trips, made.forwards) == (0, 0, 0, 0)
    assert made.local == made.tokens
    np.testing.assert_array_equal(made.image, expected.image)


def test_many_devices_at_once_draw_what_each_draws_alone(
    shared: Site, tablet: Program, models: Path
) -> None:
    manifest = bundle(models).manifest
    threshold, prefix = manifest.thresholds["entropy"], manifest.prefix_tokens
    settings = {
        **PATIENT,
        "EDGE_AGENT_GENERATION__SCORE": "entropy",
        "EDGE_AGENT_GENERATION__THRESHOLD": repr(threshold),
    }
    captions = {"left": ("google: sunflower", 3), "right": ("twitter: umbrella", 6)}

    async def together() -> dict[str, np.ndarray]:
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(
                    asyncio.to_thread(EdgeClient(shared.state(name)).generate, caption, seed=seed),
                    name=name,
                )
                for name, (caption, seed) in captions.items()
            }
        return {name: task.result().image for name, task in asked.items()}

    with device(shared, "left", **settings), device(shared, "right", "4g", **settings):
        images = asyncio.run(together())

    assert tablet.is_running
    for name, (caption, seed) in captions.items():
        expected = reference(models, caption, seed, Policy("entropy", threshold), prefix)
        np.testing.assert_array_equal(images[name], expected.image)


@pytest.mark.usefixtures("tablet")
def test_the_record_tells_the_scores_and_decisions(shared: Site, models: Path) -> None:
    manifest = bundle(models).manifest
    policy = Policy(cast(ScoreName, manifest.score), manifest.threshold)
    expected = reference(models, CAPTION, SEED, policy, manifest.prefix_tokens)

    made = EdgeClient(shared.state("tablet")).generate(CAPTION, seed=SEED)
    told = story(shared, made.generation_id)

    decisions = np.frombuffer(told.decisions, np.uint8)
    np.testing.assert_array_equal(decisions, expected.decisions)
    assert made.local == int((decisions == LOCAL).sum())
    np.testing.assert_allclose(unpack_scores(told.scores), expected.scores, rtol=0.08, atol=1e-11)
