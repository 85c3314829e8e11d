"""What of a run of rounds outlives its process: the round under way, and every round that ended.

A round is opened (who takes part, by which seed) and later committed, each in one step that is
either on disk or not. After a crash the opened round is run again with the same seed and nodes:
it sends the same bytes, so that who has answered answers from what it keeps.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import msgpack
import numpy as np
from numpy.typing import NDArray

from fleet.errors import OutputError, StoreError

Arrays = Mapping[str, NDArray[Any]]
Outcome = Literal["kept", "discarded", "skipped"]
Part = Literal["used", "refused", "silent", "failed", "set aside"]


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a round's cohort, and the samples that it announced."""

    node: int
    samples: int


@dataclass(frozen=True, slots=True)
class Participant:
    """What became of one node in a round."""

    node: int
    part: Part
    reason: str = ""  # why it did not count, or what of it was cut
    examples: int = 0
    weight: float = 0.0  # share of the aggregate, before any trimming
    loss_before: float = 0.0
    loss_after: float = 0.0  # of the aggregate, on this node's held-out samples
    bytes_down: int = 0
    bytes_up: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """A round that was begun."""

    number: int
    seed: int
    cohort: tuple[Member, ...]
    set_aside: tuple[Participant, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """A round that ended, and all that the next one begins with."""

    number: int
    outcome: Outcome
    reason: str
    change: Arrays  # fp32
    strategy_state: Arrays = field(default_factory=dict)
    accountant: dict[str, Any] | None = None
    participants: tuple[Participant, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0


class Ledger(Protocol):
    """Where rounds are kept; `FolderLedger`, and the hub's database."""

    def opened(self) -> Opening | None:
        """The round that was begun and not ended."""
        ...

    def last(self) -> Commit | None:
        """The last round that ended."""
        ...

    def open(self, opening: Opening) -> None:
        """Notes a beginning, durably."""
        ...

    def commit(self, commit: Commit) -> None:
        """Notes an end, durably and as a whole."""
        ...


class FolderLedger:
    """A ledger in a folder: one file for the opened round, one for each that ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"rounds cannot be kept in {folder}: {error.strerror}") from error

    def opened(self) -> Opening | None:
        """See `Ledger`."""
        found = _read(self._opening)
        last = self.last()
        if found is None or (last is not None and last.number >= found["number"]):
            return None
        return Opening(
            found["number"],
            found["seed"],
            tuple(Member(**each) for each in found["cohort"]),
            tuple(Participant(**each) for each in found["set_aside"]),
        )

    def last(self) -> Commit | None:
        """See `Ledger`."""
        files = sorted(self._folder.glob("round-*.msgpack"))
        return _commit(_read(files[-1])) if files else None

    def open(self, opening: Opening) -> None:
        """See `Ledger`."""
        _write(self._opening, asdict(opening))

    def commit(self, commit: Commit) -> None:
        """See `Ledger`."""
        fields = {name: getattr(commit, name) for name in Commit.__slots__}
        fields["change"] = pack_arrays(commit.change)
        fields["strategy_state"] = pack_arrays(commit.strategy_state)
        fields["participants"] = [asdict(each) for each in commit.participants]
        _write(self._folder / f"round-{commit.number:06}.msgpack", fields)

    def history(self) -> list[Commit]:
        """All rounds that ended."""
        return [_commit(_read(file)) for file in sorted(self._folder.glob("round-*.msgpack"))]

    @property
    def _opening(self) -> Path:
        return self._folder / "opening.msgpack"


def pack_arrays(arrays: Arrays) -> dict[str, Any]:
    """Arrays as plain values."""
    return {
        name: [value.dtype.str, list(value.shape), value.tobytes()]
        for name, value in sorted(arrays.items())
    }


def unpack_arrays(packed: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays that `pack_arrays` took."""
    return {
        name: np.frombuffer(data, dtype).reshape(shape)
        for name, (dtype, shape, data) in packed.items()
    }


def _commit(found: dict[str, Any]) -> Commit:
    found["change"] = unpack_arrays(found["change"])
    found["strategy_state"] = unpack_arrays(found["strategy_state"])
    found["participants"] = tuple(Participant(**each) for each in found["participants"])
    return Commit(**found)


def _write(file: Path, fields: Mapping[str, Any]) -> None:
    draft = file.with_name(f"{file.name}.new")
    try:
        with draft.open("wb") as stream:
            stream.write(msgpack.packb(fields))
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    except OSError as error:
        raise OutputError(f"the round cannot be kept in {file}: {error.strerror}") from error


def _read(file: Path) -> Any:
    try:
        return msgpack.unpackb(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgpack.UnpackException) as error:
        raise StoreError(f"{file} is not a round that can be read") from error
