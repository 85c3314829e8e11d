"""A broker, a hub and devices as separate processes; every test stops what it started."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.models.bundle import reference_path
from simulations.processes import Program, free_port
from simulations.site import Site, broker, device, hub

PATIENT = {
    # A hub that was killed loads torch again, which takes long on a busy machine.
    "EDGE_AGENT_GENERATION__OUTAGE_PATIENCE_S": "150",
    "EDGE_AGENT_GENERATION__DEADLINE_S": "180",
    "EDGE_AGENT_GENERATION__REQUEST_DEADLINE_S": "20",
    "EDGE_AGENT_GENERATION__OPEN_DEADLINE_S": "120",
    "EDGE_AGENT_BROKER__RECONNECT_CAP_S": "2",
    "EDGE_AGENT_OUTBOX__RESEND_S": "1",
}


@pytest.fixture(scope="session")
def models() -> Path:
    """The family under test: the shipped one, or that in the folder CIAR_TEST_MODELS."""
    return Path(os.environ.get("CIAR_TEST_MODELS", reference_path()))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Site]:
    """A broker and a hub for all tests of a module that kill neither."""
    site = _site(tmp_path_factory.mktemp("fleet"), models)
    with broker(site), hub(site):
        yield site


@pytest.fixture
def site(tmp_path: Path, models: Path) -> Site:
    """A place for the processes of one test."""
    return _site(tmp_path, models)


@pytest.fixture
def own_broker(site: Site) -> Iterator[Program]:
    """A broker of this test alone, to be killed."""
    with broker(site) as running:
        yield running


@pytest.fixture(scope="module")
def tablet(shared: Site) -> Iterator[Program]:
    """A device on the shared site."""
    with device(shared, "tablet", **PATIENT) as running:
        yield running


def _site(folder: Path, models: Path) -> Site:
    return Site(
        folder,
        free_port(),
        models,
        own_broker=False,
        start_s=150,
        hub_settings={"CLOUD_HUB_BROKER__RECONNECT_CAP_S": "2", "CLOUD_HUB_ENGINE__THREADS": "1"},
    )
