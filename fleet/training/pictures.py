"""The captioned pictures the reference family is trained on, built from three npm packages."""

import hashlib
import io
import json
import logging
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fleet.errors import FleetError
from fleet.models.caption import MAX_WORDS, CaptionVocabulary, split_words

log = logging.getLogger(__name__)

SIDE = 64
PACKAGES = {
    "google": ("emoji-datasource-google", "16.0.0"),
    "twitter": ("emoji-datasource-twitter", "16.0.0"),
    "fluent": ("@lobehub/fluent-emoji-3d", "1.1.0"),
}
SPLITS = ("train", "validation", "test")
# Of a hundred emoji 94 are trained on, 3 choose models, 3 are only for the final figures.
_SPLIT_BOUNDS = (94, 97)
# A base picture and all its skin tones together weigh 1.
_BASE_SHARE = 0.5
_TONES = {
    "1F3FB": "light skin tone",
    "1F3FC": "medium-light skin tone",
    "1F3FD": "medium skin tone",
    "1F3FE": "medium-dark skin tone",
    "1F3FF": "dark skin tone",
}


@dataclass(frozen=True, slots=True)
class Emoji:
    """One emoji as the data source lists it; `base` names its family of skin tones."""

    base: str
    code: str
    name: str
    weight: float


@dataclass(frozen=True)
class Pictures:
    """All pictures in memory, with one caption, split and sampling weight each."""

    pixels: NDArray[np.uint8]  # [N, 64, 64, 3]
    captions: list[str]
    split: NDArray[np.uint8]  # [N], index into SPLITS
    weight: NDArray[np.float32]  # [N]

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return the indices of one split."""
        return np.flatnonzero(self.split == SPLITS.index(split)).astype(np.int64)


def build_pictures(work: Path, packages: Path) -> Pictures:
    """Build `pictures.npz`, `captions.json` and `vocabulary.json` in `work`, or read them."""
    if not (work / "pictures.npz").exists():
        _write(work, packages)
    return load_pictures(work)


def load_pictures(work: Path) -> Pictures:
    """Read the pictures built before."""
    if not (work / "pictures.npz").exists():
        raise FleetError(f"no pictures in {work}: run the data step first")
    captions = json.loads((work / "captions.json").read_text(encoding="utf-8"))
    with np.load(work / "pictures.npz") as arrays:
        return Pictures(arrays["pixels"], captions, arrays["split"], arrays["weight"])


def split_of(base: str) -> str:
    """Return the split of an emoji, a function of its base code point alone."""
    bucket = int.from_bytes(hashlib.sha256(base.encode()).digest()[:4], "big") % 100
    return SPLITS[sum(bucket >= bound for bound in _SPLIT_BOUNDS)]


def _write(work: Path, packages: Path) -> None:
    archives = {style: _fetch(packages, *package) for style, package in PACKAGES.items()}
    emoji = _list_emoji(archives["google"])
    pixels, captions, split, weight = [], [], [], []
    for style, archive in archives.items():
        files = _read_images(archive)
        for item in emoji:
            encoded = _find(files, item.code)
            caption = f"{style}: {item.name}"
            if encoded is None or len(split_words(caption)) > MAX_WORDS:
                continue
            pixels.append(_compose(encoded))
            captions.append(caption)
            split.append(SPLITS.index(split_of(item.base)))
            weight.append(item.weight)
        log.info("pictures", extra={"style": style, "total": len(pixels)})
    _save(work, np.stack(pixels), captions, np.array(split, np.uint8), np.array(weight, np.float32))


def _save(
    work: Path,
    pixels: NDArray[np.uint8],
    captions: list[str],
    split: NDArray[np.uint8],
    weight: NDArray[np.float32],
) -> None:
    known = [caption for caption, part in zip(captions, split, strict=True) if part == 0]
    CaptionVocabulary.from_captions(known).save(work / "vocabulary.json")
    text = json.dumps(captions, ensure_ascii=False, indent=0)
    (work / "captions.json").write_text(text, encoding="utf-8")
    # Written last and moved into place: its presence says that the set is complete.
    partial = work / "pictures.partial.npz"
    np.savez(partial, pixels=pixels, split=split, weight=weight)
    partial.replace(work / "pictures.npz")


def _fetch(packages: Path, name: str, version: str) -> Path:
    archive = packages / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    if not archive.exists():
        packages.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", f"{name}@{version}"]
        done = subprocess.run(command, cwd=packages, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not archive.exists():
            raise FleetError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return archive


def _list_emoji(archive: Path) -> list[Emoji]:
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/emoji.json")
        if member is None:
            raise FleetError(f"{archive.name} lacks emoji.json")
        entries: list[dict[str, Any]] = json.load(member)
    return [emoji for entry in entries for emoji in _family(entry)]


def _family(entry: dict[str, Any]) -> Iterator[Emoji]:
    base, name = entry["unified"], entry["name"].lower()
    variants = entry.get("skin_variations", {})
    yield Emoji(base, base, name, _BASE_SHARE if variants else 1.0)
    for tones, variant in variants.items():
        toned = " and ".join(dict.fromkeys(_TONES[tone] for tone in tones.split("-")))
        share = (1 - _BASE_SHARE) / len(variants)
        yield Emoji(base, variant["unified"], f"{name}, {toned}", share)


def _read_images(archive: Path) -> dict[str, bytes]:
    """Return the 64-pixel PNG or the WebP files of a package by their lower-case code points."""
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            wanted = path.parent.name == "64" and path.suffix == ".png"
            if wanted or (path.parent.name == "assets" and path.suffix == ".webp"):
                content = tar.extractfile(member)
                if content is not None:
                    files[path.stem.lower()] = content.read()
    return files


def _find(files: dict[str, bytes], code: str) -> bytes | None:
    """Look an emoji up; the sets differ in variation selectors and leading zeros."""
    full = code.lower()
    bare = full.replace("-fe0f", "")
    for stem in (full, bare, full.lstrip("0"), bare.lstrip("0")):
        if stem in files:
            return files[stem]
    return None


def _compose(encoded: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(encoded)) as image:
        picture = image.convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture).convert("RGB")
    return np.asarray(flat.resize((SIDE, SIDE), Image.Resampling.LANCZOS), dtype=np.uint8)
