"""What a device has seen and may learn from: a bounded ring on disk, of numbers only.

A sample is one position that the cloud judged: the device's hidden states, the cloud's token, and
the largest entries of the cloud's law where the hub sent them. No caption, no picture and no
position is kept. The newest sample overwrites the oldest; a record that was torn by a crash
fails its checksum and is not read.
"""

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError, OutputError

FORMAT = "ciar-samples-2"
SHAPE_FILE = "samples.json"
DATA_FILE = "samples.bin"
HELD_OUT_EVERY = 5  # one block of samples in so many is never trained on
HELD_OUT_BLOCK = 64  # in a row: those of two or three pictures
_HEAD = ("sequence", "checksum")


@dataclass(frozen=True, slots=True)
class RingShape:
    """What all samples of a ring have in common.

    `backbone` names the network that made the hidden states: those of another one mean nothing.
    """

    backbone: str
    dim: int
    vocab_size: int
    law_size: int  # codes of a law that are kept
    capacity: int

    @property
    def dtype(self) -> np.dtype[np.void]:
        """One record on disk."""
        fields: list[Any] = [
            ("sequence", "<u8"),  # counts from 1; 0 is an empty slot
            ("checksum", "<u4"),
            ("cloud", "<u4"),
            ("token", "<u2"),
            ("hidden", "<f2", (self.dim,)),
            ("guided", "<f2", (self.dim,)),
            ("codes", "<u2", (self.law_size,)),
            ("log_probs", "<f2", (self.law_size,)),  # -inf: no entry
        ]
        return np.dtype(fields)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Judged positions.

    Attributes:
        sequence: [n], the number of each since the ring began.
        cloud: [n], which cloud model said so: a checksum of its version.
        token: [n], what the cloud drew.
        hidden: [n, D], the hidden state with the caption; the radius is made of it.
        guided: [n, D], the hidden state that the guided center is made of.
        codes: [n, K], codes of the cloud's law, the likeliest ones.
        log_probs: [n, K], their log-probabilities at temperature 1; -inf where there is none.
    """

    sequence: NDArray[np.uint64]
    cloud: NDArray[np.uint32]
    token: NDArray[np.uint16]
    hidden: NDArray[np.float16]
    guided: NDArray[np.float16]
    codes: NDArray[np.uint16]
    log_probs: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.sequence)

    def __getitem__(self, chosen: Any) -> "Samples":
        return Samples(*(getattr(self, name)[chosen] for name in self.__slots__))

    @property
    def has_law(self) -> NDArray[np.bool_]:
        """Whether the hub sent a law [n]."""
        known: NDArray[np.bool_] = np.asarray(np.isfinite(self.log_probs).any(axis=1))
        return known

    @property
    def is_held_out(self) -> NDArray[np.bool_]:
        """Whether a sample is kept for validation [n]; settled once, by its number.

        Samples of one picture resemble each other, so what is validated on must come from
        other pictures than what is trained on: blocks of neighbours are held out together.
        """
        held: NDArray[np.bool_] = self.sequence // HELD_OUT_BLOCK % HELD_OUT_EVERY == 0
        return held

    def split(self, cloud: int = 0) -> tuple["Samples", "Samples"]:
        """Those to train on and those to validate with; all have a law.

        Only those of the cloud model `cloud` count, or, where that is 0, of the one heard last:
        what another one would have said is nothing to learn now.
        """
        known = self[self.has_law]
        if len(known):
            known = known[known.cloud == (cloud or known.cloud[-1])]
        return known[~known.is_held_out], known[known.is_held_out]


def cloud_number(version: str) -> int:
    """What samples call a cloud model; never 0."""
    return zlib.crc32(version.encode()) or 1


class SampleRing:
    """The ring in a folder; one process writes, any number read."""

    def __init__(self, folder: Path, shape: RingShape) -> None:
        self.shape = shape
        self._path = folder / DATA_FILE
        self._last = 0

    @classmethod
    def create(cls, folder: Path, shape: RingShape) -> Self:
        """The ring of this shape in `folder`; samples of another shape there are dropped.

        Raises:
            OutputError: The folder cannot be written.
        """
        with _writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if _shape_in(folder) != shape:
                (folder / DATA_FILE).unlink(missing_ok=True)
                text = json.dumps({"format": FORMAT, **asdict(shape)}, indent=1)
                _replace(folder / SHAPE_FILE, text + "\n")
            (folder / DATA_FILE).touch(mode=0o600)
        ring = cls(folder, shape)
        ring._last = int(ring.read().sequence.max(initial=0))
        return ring

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The ring that is in `folder`, to read.

        Raises:
            InvalidInputError: There is none.
        """
        shape = _shape_in(folder)
        if shape is None:
            raise InvalidInputError(f"there are no samples in {folder}")
        return cls(folder, shape)

    def append(self, samples: Samples) -> None:
        """Adds samples, numbering them on; their own numbers do not count.

        Raises:
            OutputError: The file cannot be written.
        """
        records = np.zeros(len(samples), self.shape.dtype)
        for name in self.shape.dtype.names or ():
            if name not in _HEAD:
                records[name] = getattr(samples, name)
        records["sequence"] = np.arange(self._last + 1, self._last + 1 + len(samples))
        for record in records:
            record["checksum"] = _checksum(record)
        with _writable(self._path), self._path.open("r+b") as file:
            for record in records[-self.shape.capacity :]:
                slot = (int(record["sequence"]) - 1) % self.shape.capacity
                file.seek(slot * self.shape.dtype.itemsize)
                file.write(record.tobytes())
        self._last += len(samples)

    def read(self, up_to: int | None = None) -> Samples:
        """All samples, oldest first, or those up to a sequence number."""
        data = self._path.read_bytes() if self._path.exists() else b""
        size = self.shape.dtype.itemsize
        records = np.frombuffer(data[: len(data) // size * size], self.shape.dtype)
        kept = [
            index
            for index in np.flatnonzero(records["sequence"])
            if records[index]["checksum"] == _checksum(records[index])
            and (up_to is None or records[index]["sequence"] <= up_to)
        ]
        records = records[np.array(kept, np.int64)]
        records = records[np.argsort(records["sequence"])]
        return Samples(*(records[name] for name in Samples.__slots__))


def _checksum(record: Any) -> int:
    bare = record.copy()
    bare["checksum"] = 0
    return zlib.crc32(bare.tobytes())


def _shape_in(folder: Path) -> RingShape | None:
    try:
        found = json.loads((folder / SHAPE_FILE).read_text(encoding="utf-8"))
        return RingShape(**found) if found.pop("format") == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _replace(file: Path, text: str) -> None:
    draft = file.with_name(f"{file.name}.new")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"samples cannot be kept in {path}: {error.strerror}") from error
