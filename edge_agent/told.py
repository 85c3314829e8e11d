"""What the hub told of captions that this device cannot read: once a caption, then kept.

The folder holds the captions that were drawn last, at most `KEPT`; where it cannot be written,
they are kept until the process ends.
"""

import hashlib
import os
from pathlib import Path

from fleet.errors import ProtocolError
from fleet.ids import ModelVersion
from fleet.logs import get_logger
from fleet.protocol.condition import SentCondition, unpack_condition

KEPT = 512

log = get_logger(__name__)


class Told:
    """Conditions by caption, of one cloud model of a width."""

    def __init__(self, folder: Path | None, cloud_version: ModelVersion, width: int) -> None:
        """`folder` is made when there is something to keep; None: nothing outlives the process."""
        self._folder, self._version, self._width = folder, cloud_version, width
        self._known: dict[str, SentCondition] = {}

    def get(self, caption: str) -> SentCondition | None:
        """The condition of a caption; None if nobody told."""
        name = self._name(caption)
        if name not in self._known and self._folder is not None:
            try:
                self._keep(name, (self._folder / name).read_bytes())
                os.utime(self._folder / name)
            except (OSError, ProtocolError):
                return None
        return self._known.get(name)

    def put(self, caption: str, data: bytes) -> None:
        """Keeps what was told.

        Raises:
            ProtocolError: It is not for this model.
        """
        name = self._name(caption)
        self._keep(name, data)
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft = self._folder / f"{name}.new"
            draft.write_bytes(data)
            draft.replace(self._folder / name)
            self._tidy(self._folder)
        except OSError as error:
            log.warning("condition not kept", reason=str(error))

    def _keep(self, name: str, data: bytes) -> None:
        self._known[name] = unpack_condition(data, self._width)
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]

    def _name(self, caption: str) -> str:
        return hashlib.sha256(f"{self._version}\n{caption.strip()}".encode()).hexdigest()

    @staticmethod
    def _tidy(folder: Path) -> None:
        files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
        for file in files[:-KEPT]:
            file.unlink(missing_ok=True)
