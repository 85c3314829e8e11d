"""Where a running agent can be reached: a file in the state folder, for its user only."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.errors import OutputError

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Port and token of one running agent."""

    port: int
    token: str
    pid: int


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


@contextmanager
def published(path: Path, endpoint: Endpoint) -> Iterator[None]:
    """Writes the file, mode 0600, and removes it at the end.

    Raises:
        OutputError: It cannot be written.
    """
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            json.dump(asdict(endpoint), stream)
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def find(path: Path) -> Endpoint | None:
    """The endpoint that the file names, or None where there is no usable file."""
    try:
        return Endpoint(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
