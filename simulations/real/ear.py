"""What happens in the processes of a run, heard as it is written to their files."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulations.history.events import Event
from simulations.history.tally import ENDS, Tally


@dataclass(slots=True)
class Ear:
    """Hears the events of all crowds, and what the run itself says."""

    files: list[Path]
    tally: Tally
    heard: list[Event] = field(default_factory=list)
    next_wish: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))  # by node
    open_wishes: set[tuple[str, int]] = field(default_factory=set)  # node, wish
    open_faults: defaultdict[Path, list[Event]] = field(default_factory=lambda: defaultdict(list))
    _read: dict[Path, int] = field(default_factory=dict)

    def listen(self) -> None:
        """Takes the whole lines that were written since the last time."""
        for file in self.files:
            with file.open("rb") as stream:
                stream.seek(self._read.get(file, 0))
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            for line in whole.splitlines():
                event = json.loads(line)
                self._follow(file, event)
                self.say(event)

    def say(self, event: Event) -> None:
        """Takes one event."""
        self.heard.append(event)
        self.tally.add(event)
        if event["event"] == "asked":
            self.next_wish[event["node"]] = event["wish"] + 1
            self.open_wishes.add((event["node"], event["wish"]))
        elif event["event"] in ENDS:
            self.open_wishes.discard((event["node"], event["wish"]))

    def died(self, at: float, file: Path, nodes: Iterable[str]) -> None:
        """The process that wrote a file was killed: its last words, and what they leave open."""
        self.listen()
        for event in self.open_faults.pop(file, ()):
            self.say({**event, "at": at, "state": "ends"})
        for node in nodes:
            for wish in sorted(wish for each, wish in self.open_wishes if each == node):
                self.say(_event(at, "interrupted", node=node, wish=wish))
            self.say(_event(at, "node", node=node, state="killed"))

    def _follow(self, file: Path, event: Event) -> None:
        if event["event"] != "fault":
            return
        there = self.open_faults[file]
        if event["state"] == "begins":
            there.append(event)
        else:
            there[:] = [each for each in there if each["kind"] != event["kind"]]


def _event(at: float, name: str, **facts: Any) -> Event:
    return {"at": at, "event": name, **facts}
