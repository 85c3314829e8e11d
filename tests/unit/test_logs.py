"""Event logs: one line an event, with its keys, in both forms."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fleet.logs import Format, configure_logs, get_logger


@pytest.fixture(autouse=True)
def _root_logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_event_is_one_line_with_its_keys() -> None:
    stream = io.StringIO()
    configure_logs(log_format="json", level="info", stream=stream)

    get_logger("fleet.example").info("verified", request_id="r1", accepted=3)

    event = json.loads(stream.getvalue())
    assert {
        "event": "verified",
        "level": "info",
        "module": "fleet.example",
    }.items() <= event.items()
    assert {"request_id": "r1", "accepted": 3}.items() <= event.items()
    assert event["timestamp"].endswith("Z")


def test_a_console_event_is_one_line_without_colours_in_a_file() -> None:
    stream = io.StringIO()
    configure_logs(log_format="console", level="info", stream=stream)

    get_logger("fleet.example").info("verified", accepted=3)

    assert "verified" in stream.getvalue()
    assert "accepted=3" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure_logs(log_format="json", level="warning", stream=stream)

    get_logger("fleet.example").info("verified")

    assert not stream.getvalue()


def test_a_logger_made_before_the_set_up_follows_it() -> None:
    log = get_logger("fleet.example")
    stream = io.StringIO()
    configure_logs(log_format="json", level="info", stream=stream)

    log.info("verified")

    assert "verified" in stream.getvalue()


def test_an_exception_is_part_of_its_event() -> None:
    stream = io.StringIO()
    configure_logs(log_format="json", level="info", stream=stream)

    try:
        raise ValueError("out of range")
    except ValueError:
        get_logger("fleet.example").exception("handler failed", request_id="r1")

    assert "ValueError: out of range" in json.loads(stream.getvalue())["exception"]


def test_what_libraries_log_arrives_as_an_event() -> None:
    stream = io.StringIO()
    configure_logs(log_format="json", level="info", stream=stream)

    logging.getLogger("uvicorn.error").warning("port %d is taken", 80)

    event = json.loads(stream.getvalue())
    assert ("port 80 is taken", "warning", "uvicorn.error") == (
        event["event"],
        event["level"],
        event["module"],
    )


def test_a_traceback_shows_no_local_variables() -> None:
    stream = io.StringIO()
    configure_logs(log_format="console", level="info", stream=stream)
    caption = "a secret of the caller"

    try:
        raise ValueError(len(caption))
    except ValueError:
        get_logger("fleet.example").exception("failed")

    assert "ValueError: 22" in stream.getvalue()
    assert "caption =" not in stream.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_full_disk_takes_the_lines_and_stops_nobody(log_format: Format) -> None:
    with suppress(OSError), Path("/dev/full").open("w") as stream:
        configure_logs(log_format=log_format, level="info", stream=stream)

        get_logger("fleet.example").info("verified", accepted=3)
        logging.getLogger("a library").error("it says something too")


def test_logs_take_no_rich_along_and_leave_it_to_who_wants_it() -> None:
    """A sixth of an agent's start."""
    program = (
        "import sys, fleet.logs; assert 'rich' not in sys.modules;"
        "import rich.console, structlog; assert structlog.dev.rich is None"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
