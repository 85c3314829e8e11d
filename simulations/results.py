"""The folder of a run's results: taken only if it is empty, or an earlier run's."""

from pathlib import Path

from fleet.errors import OutputError
from simulations.world.world import EVENTS

_MARKER = ".ciar-run"


def claim(out: Path) -> None:
    """Makes the folder, or takes that of an earlier run, whose files are written anew.

    Raises:
        OutputError: It holds something else, or cannot be written.
    """
    try:
        is_ours = any((out / name).exists() for name in (_MARKER, EVENTS))
        if out.exists() and not is_ours and any(out.iterdir()):
            raise OutputError(
                f"{out} holds something that no run wrote: take another folder with --out"
            )
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARKER).touch()
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error
