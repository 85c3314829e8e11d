"""What happened in a world: one JSON object a line, in order, the same for the same seed.

| event | says |
| --- | --- |
| `world` | scenario and seed of the run; the first line |
| `node`  | a life began (`started`), ended well (`stopped`) or by force (`killed`) |
| `worker` | the same, and how many forwards it ran so far, with how many requests and tokens |
| `asked` | somebody wants a picture of a device; numbered by `wish` |
| `made` | a picture is finished; its record is `spooled` on disk, or waits in memory |
| `refused` | there is no picture, and the device said why |
| `interrupted`, `unheard` | the device died meanwhile, or was off |
| `fault` | begins or ends, on these `nodes` |
| `round` | begins, or ends with an outcome |
| `poisoned` | a device sent something else than what it learned in a `round` |
| `rollout` | of a bad version begins, or ends with a decision |
| `end` | all is over; `unsent` records are still on devices |
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from fleet.errors import InvalidInputError

Event = dict[str, Any]
Listener = Callable[[Event], None]


class History:
    """Writes events as they happen, and tells them to whoever looks on."""

    def __init__(self, stream: TextIO, now: Callable[[], float]) -> None:
        """`now` gives seconds since the beginning of the run."""
        self.listeners: list[Listener] = []
        self.now = now
        self._stream = stream

    def say(self, event: str, **facts: Any) -> None:
        """Something happened."""
        found: Event = {"at": round(self.now(), 6), "event": event, **facts}
        self._stream.write(json.dumps(found, ensure_ascii=False) + "\n")
        for listener in self.listeners:
            listener(found)


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file.

    Raises:
        InvalidInputError: It cannot be read, or a line of it is no event.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                found = json.loads(line)
                if not isinstance(found, dict) or "event" not in found:
                    raise InvalidInputError(f"{path}:{number} is no event")
                yield found
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInputError(f"{path} holds a line that is no JSON: {error}") from error
