"""Databases of a test alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from cloud_hub.store.database import Database
from cloud_hub.store.revision import migrate


@pytest.fixture(autouse=True)
def _plain_tracebacks() -> None:
    """Rich tracebacks take seconds on a busy machine."""
    plain = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[structlog.processors.add_log_level, plain])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'hub.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def empty(url: str) -> Iterator[Database]:
    """An empty database."""
    with Database(url) as database:
        yield database


@pytest.fixture
def database(empty: Database) -> Database:
    """A migrated database."""
    migrate(empty)
    return empty
