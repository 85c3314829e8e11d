"""Event logs: a constant sentence and keys, as JSON lines or for a person's console."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TextIO, cast


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Who is imported meanwhile does not find the package, unless it is in use already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


# It takes rich along for tracebacks that are never drawn here (`_renderer`): a sixth of an agent's
# start.
with _without("rich"):
    import structlog

Format = Literal["json", "console"]
Level = Literal["debug", "info", "warning", "error"]


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of one module: `log = get_logger(__name__)`.

    An event is a sentence that never varies, and keys: `log.info("verified", accepted=3)`.
    """
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger(module=name))


def configure_logs(*, log_format: Format, level: Level, stream: TextIO | None = None) -> None:
    """Sends every event of this process, and what libraries log, to `stream` (stderr).

    What the stream does not take, because its disk is full or its reader has gone, is lost.
    Called once, by the command lines; a library or a test that does not call it gets
    structlog's own console output.
    """
    target = stream if stream is not None else sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*_SHARED, structlog.processors.format_exc_info, _renderer(log_format, target)]
        if log_format == "json"
        else [*_SHARED, _renderer(log_format, target)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Patient(target))),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        level=max(threshold, logging.WARNING), handlers=[_ForeignHandler()], force=True
    )


class _Patient:
    """A stream whose lines are gone while it takes none: a full disk is no reason to stop."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class _ForeignHandler(logging.Handler):
    """Passes the records of libraries that use `logging` on as events."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(module=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


def _renderer(log_format: Format, stream: TextIO) -> Any:
    if log_format == "json":
        return structlog.processors.JSONRenderer()
    # Rich's tracebacks print all local variables: seconds of work, and captions in the log.
    return structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )


_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
