"""Plain tracebacks in the logs of these tests: rich ones take seconds on a busy machine."""

import pytest
import structlog


@pytest.fixture(autouse=True)
def _plain_tracebacks() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
    )
