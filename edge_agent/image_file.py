"""Pictures as PNG files: scaled, and written as a whole or not at all."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError, OutputError

MAX_SCALE = 32
Resampling = Literal["smooth", "pixels"]

_SEPARATORS = re.compile(r"[^a-z0-9]+")


def default_name(caption: str) -> Path:
    """A file name that tells the caption."""
    return Path(f"{_SEPARATORS.sub('-', caption.lower()).strip('-')[:60] or 'picture'}.png")


def check_writable(path: Path) -> None:
    """Makes sure that `path` can be written, before any work is done for it.

    Raises:
        InvalidInputError: It does not end in .png.
        OutputError: The folder is missing or cannot be written, or the path is a folder.
    """
    if path.suffix.lower() != ".png":
        raise InvalidInputError(f"the picture is a PNG: let {path} end in .png")
    if path.is_dir():
        raise OutputError(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise OutputError(f"there is no folder {path.parent}: make it first, or choose another")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise OutputError(f"{path} cannot be written: choose another place")


def write_png(
    path: Path, image: NDArray[np.uint8], scale: int, resampling: Resampling = "smooth"
) -> None:
    """Writes `image` [side, side, 3], `scale` times larger, replacing `path` in one step.

    Raises:
        OutputError: The disk takes no more, or the rights have changed.
    """
    from PIL import Image  # the daemon never needs it

    picture = Image.fromarray(image)
    if scale > 1:
        size = (picture.width * scale, picture.height * scale)
        kind = Image.Resampling.LANCZOS if resampling == "smooth" else Image.Resampling.NEAREST
        picture = picture.resize(size, kind)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            picture.save(stream, format="PNG")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
