"""Other heads for this device's network: fetched over HTTP, held against their signature, kept."""

import hashlib
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fleet.errors import BundleError, InvalidInputError, OutputError, TransportError
from fleet.ids import ModelVersion
from fleet.logs import get_logger
from fleet.models.bundle import MANIFEST, SIGNATURE, Bundle, FileEntry, Manifest, signed_manifest

TIMEOUT_S = 20.0  # of a silent server
_MOST_TEXT = 1 << 20  # bytes of a manifest
_PIECE = 1 << 16


log = get_logger(__name__)


class DamagedError(BundleError):
    """What was fetched is not what was signed; another fetch may bring what is."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A bundle's folder, the key that it is held against, and what it says of itself."""

    path: Path
    public_key: Path
    manifest: Manifest

    @property
    def as_settings(self) -> dict[str, Path]:
        """The settings by which an agent would start on it."""
        return {"bundle": self.path, "public_key": self.public_key}

    def open(self) -> Bundle:
        """The bundle, every byte checked."""
        return Bundle.open(self.path, self.public_key)


class ModelStore:
    """Bundles by version in a folder; the two used last are kept."""

    def __init__(self, folder: Path, base: "Signed", public_key: Path) -> None:
        """`base` is what the device came with; `public_key` checks what is fetched."""
        self.base = base
        self._folder, self._public_key = folder, public_key

    def get(self, version: ModelVersion, source: str) -> Signed:
        """The bundle of a version, fetched from `source` if it is not here; blocks.

        Files that the device has are not fetched again, and a fetch that broke off goes on where
        it was. One that was fetched before, and is damaged now, is fetched anew. `source` is a URL
        below which a folder of the version holds the bundle's files.

        Raises:
            InvalidInputError: The source is no http or https URL.
            TransportError: It cannot be fetched now.
            DamagedError: What came is not what was signed.
            BundleError: It is no head for this device's network.
            OutputError: The folder cannot be written.
        """
        if version == self.base.manifest.device_version:
            return self.base
        place = self._folder / version
        if place.exists() and (fault := self._fault(place)):
            log.warning("kept model is damaged: fetched again", version=version, reason=fault)
            shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            if urlsplit(source).scheme not in {"http", "https"}:
                raise InvalidInputError(f"{source!r} is no http or https URL")
            try:
                self._fetch(version, f"{source.rstrip('/')}/{version}", place)
            except OSError as error:
                raise OutputError(f"no model can be kept in {self._folder}: {error}") from error
        found = Signed(place, self._public_key, signed_manifest(place, self._public_key))
        self._check(found.manifest, version)
        self._tidy(version)
        return found

    def _fetch(self, version: ModelVersion, url: str, place: Path) -> None:
        draft = place.with_name(f"{version}.part")
        draft.mkdir(parents=True, exist_ok=True)
        for name in (MANIFEST, SIGNATURE):
            (draft / name).write_bytes(_get(f"{url}/{name}"))
        try:
            manifest = signed_manifest(draft, self._public_key)
        except BundleError as error:
            raise DamagedError(str(error)) from error
        self._check(manifest, version)
        base, own = self.base.open(), {e.sha256: e.name for e in self.base.manifest.files}
        for entry in manifest.files:
            if entry.sha256 in own:
                (draft / entry.name).write_bytes(base.read(own[entry.sha256]))
            else:
                _download(f"{url}/{entry.name}", draft / entry.name, entry)
        draft.rename(place)

    def _fault(self, place: Path) -> str:
        """What is wrong with a bundle that was fetched before; empty: nothing."""
        try:
            bundle = Bundle.open(place, self._public_key)
            for entry in bundle.manifest.files:
                bundle.read(entry.name)
        except BundleError as error:
            return str(error)
        return ""

    def _check(self, manifest: Manifest, version: ModelVersion) -> None:
        if manifest.device_version != version:
            raise BundleError(f"what was fetched as {version} is {manifest.device_version}")
        if manifest.made_by != self.base.manifest.made_by:
            raise BundleError(
                f"model {version} is for network {manifest.made_by}, this device has"
                f" {self.base.manifest.made_by}: install that bundle (setting bundle)"
            )

    def _tidy(self, version: ModelVersion) -> None:
        others = [each for each in self._folder.iterdir() if each.name != version]
        others.sort(key=lambda each: each.stat().st_mtime)
        for each in others[:-1]:
            shutil.rmtree(each, ignore_errors=True)


def _get(url: str) -> bytes:
    with _opened(url, {}) as response:
        data = _read(response, _MOST_TEXT + 1, url)
    if len(data) > _MOST_TEXT:
        raise BundleError(f"{url} is over {_MOST_TEXT} bytes")
    return data


def _download(url: str, file: Path, entry: FileEntry) -> None:
    """Brings a file to its size, from where it is; a wrong one is begun anew next time."""
    have = file.stat().st_size if file.exists() else 0
    if have < entry.size:
        with _opened(url, {"Range": f"bytes={have}-"} if have else {}) as response:
            goes_on = response.status == 206  # else the server sends all of it
            left = entry.size - (have if goes_on else 0)
            with file.open("ab" if goes_on else "wb") as stream:
                while left > 0 and (piece := _read(response, min(_PIECE, left), url)):
                    stream.write(piece)
                    left -= len(piece)
    size, found = file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()
    if size < entry.size:
        raise TransportError(f"{url} broke off after {size} of {entry.size} bytes")
    if found != entry.sha256:
        file.unlink()
        raise DamagedError(f"{url} is not the file that was signed (its hash differs)")


def _opened(url: str, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - its scheme was checked
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        raise TransportError(f"{url} answers {error.code}: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise TransportError(f"{url} cannot be reached: {error}") from error


def _read(response: Any, size: int, url: str) -> bytes:
    try:
        data: bytes = response.read(size)
    except (OSError, HTTPException) as error:
        raise TransportError(f"{url} broke off: {error}") from error
    return data
