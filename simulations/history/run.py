"""What the checker looks at: a run's events, and what its hub stored."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simulations.history.events import Event
from simulations.history.stored import Stored

Twin = Callable[[str, int, str], str | None]
"""Caption, seed and the device's version → the `image` of the picture if nothing goes wrong, or
None where that was not drawn."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is checked.

    Attributes:
        deadline_s: Of a picture.
        twin: None where no twin is known: then pictures are not compared.
    """

    events: Sequence[Event]
    stored: Stored
    deadline_s: float
    twin: Twin | None = None

    def of(self, name: str) -> Iterator[Event]:
        """The events of a name."""
        return (event for event in self.events if event["event"] == name)


Law = Callable[[Run], Iterator[str]]
"""What of a run breaks it."""
