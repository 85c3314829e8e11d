"""The released pair as checkpoints, from which both sides are loaded in full precision."""

from pathlib import Path
from shutil import copy

from fleet.errors import InvalidInputError
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, Bundle
from fleet.training.released import unpack_release

_VOCABULARY = "vocabulary.json"


def unpacked(family: Path, work: Path, out: Path) -> Path:
    """The folder below `out` with the checkpoints of a family, by its version.

    Raises:
        InvalidInputError: `work` has no captions, or others than the family.
        BundleError: The folder does not hold a released family.
    """
    if not (work / _VOCABULARY).exists():
        raise InvalidInputError(
            f"there are no captions in {work}: run `python -m fleet.training data` first"
        )
    version = Bundle.open(family / DEVICE_FOLDER, family / PUBLIC_KEY).manifest.device_version
    folder = out / f"models-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    copy(work / _VOCABULARY, folder / _VOCABULARY)
    unpack_release(family, folder)
    return folder
