"""Pictures that the device finished alone, until the cloud has corrected them, and a while after.

One JSON file a picture in the state folder, replaced as a whole. At most `limit` of them: the
oldest corrected ones go first, then the oldest that wait; after `keep_s` any goes. A file that
cannot be read is set aside, never the reason for a failure.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from edge_agent.answer import Made
from edge_agent.device import Order
from edge_agent.drafts import Known
from edge_agent.files import replace_text
from fleet.errors import OutputError
from fleet.ids import GenerationId, ModelVersion
from fleet.logs import get_logger

log = get_logger(__name__)


class Unfinished(BaseModel):
    """A picture to be corrected: what it depends on, and the tokens that are final already."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    generation_id: GenerationId
    device_version: ModelVersion
    order: Order
    tokens: list[int]
    marks: list[int]  # edge_agent.drafts.Mark of each

    @property
    def known(self) -> Known:
        """The final tokens as a picture takes them."""
        return Known(np.array(self.tokens, np.int64), np.array(self.marks, np.uint8))


class Shelved(BaseModel):
    """One picture on the shelf; `made` is its newest version."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    state: Literal["waiting", "corrected", "given_up"]
    since: float  # seconds since the epoch
    unfinished: Unfinished
    made: Made
    detail: str = ""

    @property
    def generation_id(self) -> GenerationId:
        """The first version's id, by which the caller knows the picture."""
        return self.unfinished.generation_id


class Shelf:
    """The pictures of one state folder."""

    def __init__(
        self,
        folder: Path,
        *,
        limit: int,
        keep_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads what is there.

        Raises:
            OutputError: The folder cannot be made or read.
        """
        self._folder = folder
        self._limit = limit
        self._keep_s = keep_s
        self._clock = clock
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            files = sorted(folder.glob("*.json"))
        except OSError as error:
            raise OutputError(f"{folder} cannot be used: {error.strerror}") from error
        found = [shelved for file in files if (shelved := _read(file)) is not None]
        self._all = {each.generation_id: each for each in sorted(found, key=lambda one: one.since)}

    def all(self) -> list[Shelved]:
        """What is there, oldest first."""
        self._tidy()
        return list(self._all.values())

    def find(self, generation_id: GenerationId) -> Shelved | None:
        """One picture by its first version's id."""
        return self._all.get(generation_id)

    def next_waiting(self) -> Shelved | None:
        """The oldest picture that waits for the cloud."""
        if not self._all:
            return None
        self._tidy()
        return next((each for each in self._all.values() if each.state == "waiting"), None)

    def put(self, unfinished: Unfinished, made: Made) -> None:
        """Keeps a picture until the cloud can correct it.

        Raises:
            OutputError: The disk takes nothing.
        """
        self._write(Shelved(state="waiting", since=self._clock(), unfinished=unfinished, made=made))
        self._tidy()

    def correct(self, shelved: Shelved, made: Made) -> None:
        """Puts the corrected version in the first one's place.

        Raises:
            OutputError: The disk takes nothing.
        """
        update = {"state": "corrected", "since": self._clock(), "made": made}
        self._write(shelved.model_copy(update=update))

    def give_up(self, shelved: Shelved, detail: str) -> None:
        """Notes that a picture will not be corrected, and why.

        Raises:
            OutputError: The disk takes nothing.
        """
        update = {"state": "given_up", "since": self._clock(), "detail": detail}
        self._write(shelved.model_copy(update=update))

    def _write(self, shelved: Shelved) -> None:
        file = self._file(shelved.generation_id)
        try:
            replace_text(file, shelved.model_dump_json())
        except OSError as error:
            raise OutputError(f"{file} cannot be written: {error.strerror}") from error
        self._all.pop(shelved.generation_id, None)
        self._all[shelved.generation_id] = shelved

    def _tidy(self) -> None:
        """Drops what is too old or too much; those that wait go last."""
        oldest = self._clock() - self._keep_s
        over = len(self._all) - self._limit
        by_worth = sorted(self._all.values(), key=lambda one: (one.state == "waiting", one.since))
        for index, each in enumerate(by_worth):
            if index < over or each.since < oldest:
                del self._all[each.generation_id]
                with suppress(OSError):
                    self._file(each.generation_id).unlink(missing_ok=True)

    def _file(self, generation_id: str) -> Path:
        return self._folder / f"{generation_id}.json"


def _read(file: Path) -> Shelved | None:
    try:
        return Shelved.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        log.warning("picture on the shelf not read", file=str(file), reason=str(error))
        with suppress(OSError):
            file.replace(file.with_suffix(".bad"))
        return None
