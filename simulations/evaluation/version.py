"""Which state of the code made a table."""

import subprocess
from functools import cache
from pathlib import Path


@cache
def commit() -> str:
    """The commit of this checkout, with a plus where files differ from it; empty outside git.

    Looked up once, so that what a program writes into the checkout does not count.
    """
    folder = Path(__file__).parent
    try:
        found = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found + "+" * bool(changed)


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
