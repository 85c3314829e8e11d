"""What an evaluation is asked for."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for on the command line."""

    work: Path  # training folder: checkpoints and pictures
    out: Path
    models: Path  # exported family, whose policy is in force
    pictures: int
    others: int
    searched: int
    seeds: int  # independent groups of pictures
    budget: float | None
    methods: tuple[str, ...]
    page: Path | None  # of the whole comparison
    own: bool  # whether each method is also drawn at its own best sampling
    processes: int
    threads: int

    @property
    def search_path(self) -> Path:
        """Where the searches leave their tables."""
        return self.out / "search.json"
