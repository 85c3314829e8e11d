"""Hubs, brokers and devices die in the middle; no picture changes, and no record is lost."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from edge_agent.answer import Made, Step
from edge_agent.client import EdgeClient
from fleet.decoding.accept import Policy, device_only, verify_all
from simulations.processes import Program
from simulations.site import Site, device, hub, wait_for_hub, worker
from tests.end_to_end.conftest import PATIENT
from tests.end_to_end.records import rows, story
from tests.end_to_end.reference import bundle, reference

CAPTION, SEED = "google: red heart", 7

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass
class Mortal:
    """A hub that can be killed and started again."""

    site: Site
    stack: ExitStack
    program: Program = field(init=False)

    def start(self) -> None:
        """Starts it, and returns when it listens."""
        self.program = self.stack.enter_context(hub(self.site))

    def crash(self) -> None:
        """Kills it as a crash would, and starts it again."""
        self.program.kill()
        self.start()


@contextmanager
def mortal_hub(site: Site) -> Iterator[Mortal]:
    with ExitStack() as stack:
        mortal = Mortal(site, stack)
        mortal.start()
        yield mortal


def at_tokens(tokens: list[int], act: Callable[[], None]) -> Callable[[Step], None]:
    """Calls `act` once for each of `tokens`, when that many are settled."""
    left = sorted(tokens)

    def watch(step: Step) -> None:
        if left and step.settled >= left[0]:
            del left[0]
            act()

    return watch


@pytest.mark.usefixtures("own_broker")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hub_killed_at_any_token_changes_no_picture_and_loses_no_record(
    site: Site, models: Path, seed: int
) -> None:
    prefix = bundle(models).manifest.prefix_tokens
    expected = reference(models, CAPTION, SEED, verify_all(), prefix)
    kills = random.Random(seed).sample(range(1, 240), 2)

    with mortal_hub(site) as mortal, device(site, "tablet", **PATIENT):
        client = EdgeClient(site.state("tablet"))
        made = client.generate(
            CAPTION, seed=SEED, policy="verify-all", on_step=at_tokens(kills, mortal.crash)
        )
        again = client.generate(CAPTION, seed=SEED, policy="verify-all")
        for each in (made, again):
            story(site, each.generation_id)
        stored = rows(site)

    assert made.fallback == ""
    assert made.reopened >= 1
    np.testing.assert_array_equal(made.image, expected.image)
    np.testing.assert_array_equal(again.image, expected.image)
    assert sorted(stored) == sorted([made.generation_id, again.generation_id])


@pytest.mark.usefixtures("own_broker")
def test_a_worker_that_dies_hands_its_pictures_to_another(site: Site, models: Path) -> None:
    prefix = bundle(models).manifest.prefix_tokens
    expected = reference(models, CAPTION, SEED, verify_all(), prefix)

    with mortal_hub(site) as mortal, worker(site) as other, device(site, "tablet", **PATIENT):
        # Whichever of the two has the picture, one of the deaths meets it.
        steps = iter((mortal.crash, other.kill))
        made = EdgeClient(site.state("tablet")).generate(
            CAPTION,
            seed=SEED,
            policy="verify-all",
            on_step=at_tokens([60, 150], lambda: next(steps)()),
        )

    assert (made.fallback, made.unverified) == ("", 0)
    assert made.reopened >= 1
    np.testing.assert_array_equal(made.image, expected.image)


@pytest.mark.usefixtures("own_broker")
def test_a_hub_killed_in_a_mixed_picture_rebuilds_its_features(site: Site, models: Path) -> None:
    manifest = bundle(models).manifest
    threshold = manifest.thresholds["entropy"]
    policy = Policy("entropy", threshold)
    expected = reference(models, CAPTION, SEED, policy, manifest.prefix_tokens)
    settings = {
        **PATIENT,
        "EDGE_AGENT_GENERATION__SCORE": "entropy",
        "EDGE_AGENT_GENERATION__THRESHOLD": repr(threshold),
    }

    with mortal_hub(site) as mortal, device(site, "tablet", "wifi", **settings):
        made = EdgeClient(site.state("tablet")).generate(
            CAPTION, seed=SEED, on_step=at_tokens([110], mortal.crash)
        )
        told = story(site, made.generation_id)

    assert made.reopened >= 1
    assert made.local > 50
    np.testing.assert_array_equal(np.frombuffer(told.decisions, np.uint8), expected.decisions)
    np.testing.assert_array_equal(made.image, expected.image)


def test_a_broker_that_is_gone_leaves_a_picture_that_says_so(
    site: Site, own_broker: Program, models: Path
) -> None:
    settings = {**PATIENT, "EDGE_AGENT_GENERATION__OUTAGE_PATIENCE_S": "1"}

    with hub(site), device(site, "tablet", **settings) as agent:
        wait_for_hub(site, "tablet", agent, time.monotonic() + 60)
        made = EdgeClient(site.state("tablet")).generate(
            CAPTION, seed=SEED, policy="verify-all", on_step=at_tokens([40], own_broker.kill)
        )

    assert made.fallback == "no_broker"
    assert made.unverified > 0
    assert made.verified >= 40 - made.prefix
    assert made.verified + made.unverified + made.prefix == made.tokens
    assert any("unverified" in note for note in made.notes)
    cloud = reference(models, CAPTION, SEED, verify_all(), made.prefix)
    assert made.image.shape == cloud.image.shape


def test_a_device_without_any_broker_draws_the_device_only_picture(
    site: Site, models: Path
) -> None:
    expected = reference(models, CAPTION, SEED, device_only(), 0)
    settings = {**PATIENT, "EDGE_AGENT_GENERATION__START_PATIENCE_S": "0.2"}

    with device(site, "tablet", **settings):
        made = EdgeClient(site.state("tablet")).generate(CAPTION, seed=SEED, deadline_s=60)

    assert made.fallback == "no_broker"
    assert made.round_trips == 0
    np.testing.assert_array_equal(made.image, expected.image)


@pytest.mark.usefixtures("own_broker")
def test_a_device_killed_after_a_picture_reports_it_exactly_once(site: Site) -> None:
    made: list[Made] = []

    # Nobody records yet: the record waits on the device's disk.
    with device(site, "tablet", **PATIENT) as agent:
        client = EdgeClient(site.state("tablet"))
        made.append(client.generate(CAPTION, seed=1, policy="device-only"))
        agent.kill()
    with mortal_hub(site) as mortal:
        with device(site, "tablet", **PATIENT) as agent:
            story(site, made[0].generation_id)
            # Now a race: killed while the record, or its receipt, is on its way.
            made += [client.generate(CAPTION, seed=seed, policy="device-only") for seed in (2, 3)]
            agent.kill()
        mortal.crash()
        with device(site, "tablet", **PATIENT):
            for each in made:
                story(site, each.generation_id)
            _wait_for_empty_outbox(client)
        stored = rows(site)

    assert sorted(stored) == sorted(each.generation_id for each in made)


def _wait_for_empty_outbox(client: EdgeClient) -> None:
    deadline = time.monotonic() + 60
    while client.status()["outbox_records"]:
        assert time.monotonic() < deadline, "records stay in the outbox"
        time.sleep(0.1)
