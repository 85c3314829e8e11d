"""What this node has answered, on disk: asked again, it answers the same without training again."""

import os
from pathlib import Path

import msgpack

from fleet.errors import OutputError
from fleet.ids import RequestId, is_level

KEPT = 8


class Replies:
    """The last answers, one file each; an answer is on disk before it is sent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, message_id: RequestId) -> tuple[bytes, str] | None:
        """The answer that was given, and "" or the error."""
        try:
            found = msgpack.unpackb((self._folder / message_id).read_bytes())
            return found["content"], found["error"]
        except (OSError, ValueError, KeyError, msgpack.UnpackException):
            return None

    def keep(self, message_id: RequestId, content: bytes, error: str) -> None:
        """Keeps an answer, and lets the oldest go.

        Raises:
            OutputError: The folder cannot be written.
        """
        if not is_level(message_id):
            raise OutputError(f"message id {message_id!r} is no file name")
        draft = self._folder / f"{message_id}.new"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as stream:
                stream.write(msgpack.packb({"content": content, "error": error}))
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(self._folder / message_id)
            files = sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
            for file in files[:-KEPT]:
                file.unlink(missing_ok=True)
        except OSError as error_:
            raise OutputError(f"answers cannot be kept in {self._folder}") from error_
