"""Fixtures of all tests: a clean environment, and servers where they are installed."""

import os
from collections.abc import Iterator
from typing import NoReturn
from uuid import uuid4

import pytest
import structlog
from hypothesis import settings

from tests.services import Mosquitto, Postgres, mosquitto_program, postgres_programs

for name in list(os.environ):
    if name.startswith(("CLOUD_HUB_", "EDGE_AGENT_")):
        del os.environ[name]
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Repeatable where it decides about a change, new examples where somebody looks on.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def _structlog_defaults() -> Iterator[None]:
    """No test leaves its logging set-up to the next."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def mosquitto_port() -> Iterator[int]:
    """The port of a mosquitto that all tests share; take topics or node ids of your own."""
    if mosquitto_program() is None:
        _left_out("mosquitto is not installed")
    with Mosquitto() as broker:
        yield broker.port


@pytest.fixture
def mosquitto() -> Iterator[Mosquitto]:
    """A mosquitto of this test alone, to be stopped and started again."""
    if mosquitto_program() is None:
        _left_out("mosquitto is not installed")
    with Mosquitto() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL cluster that all tests share."""
    if postgres_programs() is None:
        _left_out("PostgreSQL's server programs are not installed")
    with Postgres() as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of this test alone."""
    name = f"test_{uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


def _left_out(reason: str) -> NoReturn:
    """Skips here, and fails where nothing may be left out."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
