"""What an evaluation is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    weights: Mapping[str, Path] = field(default_factory=dict)  # of the standard networks, by name

    @property
    def search_path(self) -> Path:
        """Where the searches leave their tables."""
        return self.out / "search.json"

    @property
    def costs_path(self) -> Path:
        """Where the step costs of this machine lie, if they were measured beforehand."""
        return self.out / "steps.json"
