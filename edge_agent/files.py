"""Small files that are replaced as a whole or not at all."""

import os
from pathlib import Path


def replace_text(file: Path, text: str) -> None:
    """Writes `file`, on disk before it counts.

    Raises:
        OSError: The folder takes nothing; what was there stays.
    """
    draft = file.with_name(f"{file.name}.new")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
