"""Times of forwards at real size, kept in a file as they are measured, so that a run can go on."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fleet.errors import CapacityError, InvalidInputError, OutputError


@dataclass(slots=True)
class Times:
    """Seconds by subject and by what was measured; nothing is measured after `until`."""

    path: Path | None  # None: kept in memory only
    until: float  # of `time.monotonic`
    _known: dict[str, dict[str, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._known = _read(self.path) if self.path else {}

    def complete(
        self, subject: str, measures: Iterable[tuple[str, Callable[[], float]]]
    ) -> dict[str, float]:
        """The times of all measures, those that are missing measured now, one after the other.

        Raises:
            CapacityError: The time was up before all were measured; those that were are kept.
            OutputError: The file cannot be written.
        """
        known, wanted = self._known.setdefault(subject, {}), dict(measures)
        for name, measure in wanted.items():
            if name in known:
                continue
            if time.monotonic() >= self.until:
                kept = f"in {self.path}" if self.path else "nowhere: name a file (--times)"
                raise CapacityError(
                    f"the time is up with {len(known)} of {len(wanted)} times of {subject}, kept"
                    f" {kept}; run it again to go on"
                )
            known[name] = measure()
            self._write()
        return {name: known[name] for name in wanted}

    def _write(self) -> None:
        if self.path is None:
            return
        try:
            partial = self.path.with_name(self.path.name + ".partial")
            partial.write_text(json.dumps(self._known, indent=1) + "\n", encoding="utf-8")
            partial.replace(self.path)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> dict[str, dict[str, float]]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(subject): {str(name): float(value) for name, value in times.items()}
            for subject, times in found.items()
        }
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidInputError(f"{path} holds no measured times: {error}") from error
