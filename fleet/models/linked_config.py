"""The configuration of a model that stays in somebody's files: which files, and what they were.

The files are large and not ours, so they are neither copied nor converted. They are hashed when
they are added, and known by size and modification time from then on; what changed is refused,
since pictures would silently change too.
"""

import json
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleet.errors import BundleError, InvalidInputError, OutputError
from fleet.ids import ModelVersion
from fleet.models.bundle import content_version
from fleet.models.signing import read_file, replace_file
from fleet.models.torch_model import CONFIG

LINKED_FORMAT: Final = "ciar-linked-1"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DtypeName = Literal["float32", "bfloat16"]
Kind = Literal["llamagen", "chameleon", "janus"]


class FileStamp(BaseModel):
    """A file or folder that is pointed at, and what it was when it was added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    size: int = Field(ge=0)
    modified_ns: int
    sha256: str  # of the files' own hashes, in the order of their names

    @classmethod
    def at(cls, path: Path) -> "FileStamp":
        """Return a stamp that only says where the file is."""
        return cls(path=path.resolve(), size=0, modified_ns=0, sha256="")

    @classmethod
    def of(cls, path: Path) -> "FileStamp":
        """Stamp what is at `path` now, a folder by all of its files; reads everything once.

        Raises:
            InvalidInputError: There is nothing, or nothing that can be read.
        """
        digest = sha256()
        try:
            for each in _files(path):
                with each.open("rb") as file:
                    digest.update(file_digest(file, "sha256").digest())
            size, modified = _size_and_time(path)
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
        hexadecimal = digest.hexdigest()
        return cls(path=path.resolve(), size=size, modified_ns=modified, sha256=hexadecimal)

    def check(self) -> None:
        """Hold the file against its stamp.

        Raises:
            BundleError: It is gone, or not what was added.
        """
        try:
            now = _size_and_time(self.path)
        except OSError as error:
            raise BundleError(
                f"{self.path} cannot be read ({error.strerror}): add the model again"
            ) from error
        if now != (self.size, self.modified_ns):
            raise BundleError(f"{self.path} is not what was added: add the model again")


class CaptionSource(BaseModel):
    """Where captions become features, or, with "prompts", text tokens: a tokenizer's JSON file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["t5", "file", "prompts"]
    path: Path


class LinkedConfig(BaseModel):
    """What `config.json` of a linked model holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ciar-linked-1"] = LINKED_FORMAT
    kind: Kind = "llamagen"
    family: str = Field(min_length=1, max_length=64)
    weights: FileStamp
    tokenizer: FileStamp
    grid: int = Field(gt=0, le=64)
    heads: int | None = None  # only of sizes that nobody released
    dtype: DtypeName
    captions: CaptionSource | None = None  # None: classes
    prompt_length: int | None = None  # positions of a prompt, where captions are prompts
    interval_feature: str | None = None  # SHA-256 of the file beside it, once one was trained

    @property
    def version(self) -> ModelVersion:
        """The version of the model: a hash of what it is made of, wherever that lies."""
        places = {"weights": {"path", "modified_ns"}, "tokenizer": {"path", "modified_ns"}}
        made_of = self.model_dump(mode="json", exclude={**places, "captions": True})
        for added_later in ("prompt_length", "interval_feature"):
            if made_of[added_later] is None:  # as before there was such a field
                del made_of[added_later]
        return content_version({CONFIG: json.dumps(made_of).encode()})

    @classmethod
    def read(cls, folder: Path) -> "LinkedConfig":
        """Read the configuration of a linked model.

        Raises:
            BundleError: It is not one.
        """
        try:
            return cls.model_validate_json(read_file(folder / CONFIG))
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise BundleError(f"{folder / CONFIG} is no linked model: {what}") from error

    def write(self, folder: Path) -> None:
        """Write the configuration.

        Raises:
            OutputError: The folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / CONFIG, (self.model_dump_json(indent=1) + "\n").encode())
        except OSError as error:
            raise OutputError(f"{folder} cannot be written: {error.strerror}") from error


def is_linked(folder: Path) -> bool:
    """Whether a cloud model's folder points at files elsewhere."""
    try:
        found = json.loads(read_file(folder / CONFIG)).get("format")
    except (ValueError, AttributeError):
        return False
    return bool(found == LINKED_FORMAT)


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file()) or [path]


def _size_and_time(path: Path) -> tuple[int, int]:
    stats = [each.stat() for each in _files(path)]
    return sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)
