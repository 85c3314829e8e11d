"""A signed folder of files: what a device needs to make pictures, and the proof that it is ours."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from cryptography.exceptions import InvalidSignature
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fleet.errors import BundleError, InvalidInputError, OutputError
from fleet.ids import ModelVersion
from fleet.models.signing import load_private_key, load_public_key, read_file, replace_file
from fleet.protocol.arrays import FEATURE_BYTES
from fleet.protocol.messages import Sampling

FORMAT: Final = "ciar-bundle-1"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"

# The files of a device bundle.
STEP_GRAPH = "step.onnx"
CAPTION_GRAPH = "caption.onnx"
DECODER_GRAPH = "decoder.onnx"
VOCABULARY = "captions.json"
DEVICE_FILES = (STEP_GRAPH, CAPTION_GRAPH, DECODER_GRAPH, VOCABULARY)

# The places of the shipped family, below `reference_path()`.
DEVICE_FOLDER = "device"
CLOUD_FOLDER = "cloud"
PUBLIC_KEY = "signing.pub"

_FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_VERSION_DIGITS = 16


class FileEntry(BaseModel):
    """One file of a bundle: its name, its size in bytes and the SHA-256 of its content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=_FILE_NAME)
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Everything about a device model that is not weights, and the hashes of what is.

    `thresholds` holds one calibrated threshold a score, for calls to the cloud at `budget`
    (a share of all positions); `score` names the one in force, and `dynamic`, `max_run` and
    `row_starts` say what the policy in force adds to it (`fleet.decoding.accept.Policy`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ciar-bundle-1"] = FORMAT
    family: str = Field(min_length=1, max_length=64)
    device_version: ModelVersion
    cloud_version: ModelVersion
    backbone: str = Field(default="", max_length=64)  # see `made_by`
    grid: int = Field(gt=0, le=64)
    picture_size: int = Field(gt=0)  # pixels of one side
    vocab_size: int = Field(gt=1, le=65_536)
    caption_positions: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    sampling: Sampling
    score: str
    thresholds: dict[str, float]
    budget: float = Field(gt=0, lt=1)
    dynamic: bool = False
    max_run: int = Field(default=0, ge=0)
    row_starts: bool = False
    # Who turns a caption into what the graphs need: the bundle's words, or the hub, once a caption.
    condition: Literal["words", "hub"] = "words"
    # Whether the cloud was trained to hear the device's features; else they need not travel.
    has_features: bool = True
    prefix_tokens: int = Field(ge=0)
    feature_scale: tuple[float, ...] = Field(min_length=FEATURE_BYTES, max_length=FEATURE_BYTES)
    files: tuple[FileEntry, ...]

    @field_validator("thresholds")
    @classmethod
    def _must_be_finite(cls, thresholds: dict[str, float]) -> dict[str, float]:
        if any(abs(value) == float("inf") or value != value for value in thresholds.values()):
            raise ValueError("a calibrated threshold is a finite number")
        return thresholds

    @property
    def made_by(self) -> str:
        """What makes the hidden states: the first version of the network that this is another
        head of, or this version itself."""
        return self.backbone or self.device_version

    @property
    def tokens(self) -> int:
        """The tokens of one picture."""
        return self.grid * self.grid

    @property
    def width(self) -> int:
        """The width of the hidden state."""
        return self.heads * self.head_dim

    @property
    def threshold(self) -> float:
        """The threshold of the score in force."""
        return self.thresholds[self.score]

    @property
    def call_share(self) -> float:
        """The share of the tokens after the prefix that the cloud may be asked about."""
        prefix = self.prefix_tokens / self.tokens
        return max(0.0, (self.budget - prefix) / (1 - prefix)) if prefix < 1 else 0.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle; `open` makes one."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path, public_key: Path) -> "Bundle":
        """Check format, signature, sizes and hashes of the bundle at `path`.

        Raises:
            BundleError: One of them is wrong; the sentence names the file and what to do.
        """
        bundle = cls(path, signed_manifest(path, public_key))
        for entry in bundle.manifest.files:
            bundle.read(entry.name)
        return bundle

    def read(self, name: str) -> bytes:
        """Return the content of one file, checked against the manifest at this very read.

        Raises:
            BundleError: The manifest does not list the file, or its content is another.
        """
        entry = next((each for each in self.manifest.files if each.name == name), None)
        if entry is None:
            raise BundleError(f"the bundle {self.path} lists no {name}: export it again")
        content = read_file(self.path / name)
        if len(content) != entry.size:
            raise BundleError(
                f"{self.path / name} has {len(content)} bytes instead of {entry.size}: "
                "fetch the bundle again"
            )
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise BundleError(
                f"{self.path / name} is not the file that was signed (its hash differs): "
                "fetch the bundle again"
            )
        return content


def signed_manifest(path: Path, public_key: Path) -> Manifest:
    """The manifest in the folder `path`, its signature checked; the other files may be missing.

    Raises:
        BundleError: It was not signed with that key, or is no manifest.
    """
    text = read_file(path / MANIFEST)
    _check_signature(path, text, public_key)
    return _parse_manifest(path, text)


def write_bundle(
    path: Path, fields: Mapping[str, Any], files: Mapping[str, bytes], private_key: Path
) -> Manifest:
    """Write files, manifest and signature to the folder `path`.

    Args:
        path: The bundle's folder; made if it is missing.
        fields: The manifest's fields, save `files` and `device_version`, which follow from
            the content.
        files: Content by file name.
        private_key: The Ed25519 key that signs, as `generate_key` wrote it.

    Raises:
        OutputError: The folder cannot be written.
        BundleError: The key cannot be read.
    """
    key = load_private_key(private_key)
    manifest = _describe(fields, files)
    text = _manifest_text(manifest)
    contents = {**files, MANIFEST: text, SIGNATURE: key.sign(text)}
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            replace_file(path / name, content)
    except OSError as error:
        raise OutputError(f"the bundle cannot be written to {path}: {error.strerror}") from error
    return manifest


def content_version(contents: Mapping[str, bytes]) -> ModelVersion:
    """Return the version of a set of files: a hash of their names and contents."""
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(f"{name} {hashlib.sha256(contents[name]).hexdigest()}\n".encode())
    return ModelVersion(digest.hexdigest()[:_VERSION_DIGITS])


def reference_path() -> Path:
    """Return the folder of the family that ships inside the package."""
    return Path(str(resources.files("fleet") / "reference"))


def _describe(fields: Mapping[str, Any], files: Mapping[str, bytes]) -> Manifest:
    try:
        entries = [
            FileEntry(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in sorted(files.items())
        ]
        unnamed = Manifest(device_version=ModelVersion(""), files=tuple(entries), **fields)
    except ValidationError as error:
        raise InvalidInputError(f"the bundle's manifest is not valid: {error}") from error
    return unnamed.model_copy(update={"device_version": _device_version(unnamed)})


def _device_version(manifest: Manifest) -> ModelVersion:
    """Hash everything that shapes a picture: all files and all other fields."""
    return content_version({MANIFEST: _manifest_text(manifest, without={"device_version"})})


def _manifest_text(manifest: Manifest, without: set[str] | None = None) -> bytes:
    # A field that has its default is not written, so one that is added later leaves the versions
    # of older bundles as they are.
    fields = manifest.model_dump(mode="json", exclude=without, exclude_defaults=True)
    fields["format"] = FORMAT
    return (json.dumps(fields, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _parse_manifest(path: Path, text: bytes) -> Manifest:
    where = path / MANIFEST
    try:
        found = json.loads(text).get("format")
        if found != FORMAT:
            raise BundleError(f"{where} is of format {found!r}; this release reads {FORMAT!r}")
        manifest = Manifest.model_validate_json(text)
    except (ValueError, AttributeError) as error:
        raise BundleError(f"{where} is not a bundle's manifest: {error}") from error
    if manifest.score not in manifest.thresholds:
        raise BundleError(f"{where} has no threshold for its score {manifest.score!r}")
    if manifest.device_version != _device_version(manifest):
        raise BundleError(f"{where} carries a version that is not its content's hash: export again")
    return manifest


def _check_signature(path: Path, text: bytes, public_key: Path) -> None:
    key = load_public_key(public_key)
    try:
        key.verify(read_file(path / SIGNATURE), text)
    except InvalidSignature as error:
        raise BundleError(
            f"{path / MANIFEST} was not signed with the key of {public_key}: "
            "fetch the bundle again, or set the public key of whoever made it"
        ) from error
