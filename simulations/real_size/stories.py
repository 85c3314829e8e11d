"""What methods decided in pictures of the reference family, kept in a small file for replays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInputError, OutputError
from simulations.evaluation.catalogue import OURS, Setting, Shipped, method
from simulations.evaluation.clock.replay import Story
from simulations.evaluation.decoder import decode
from simulations.evaluation.family import Family, load_family
from simulations.evaluation.methods import Exchange, Method, cloud_only
from simulations.evaluation.moment import AMENDED, CORRECTED, LOCAL, PREFIX
from simulations.evaluation.rules.rounds import Tree

_BASELINES = ("speculative", "EAGLE-2", "LANTERN")


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A method and its decisions.

    Attributes:
        name: Of the method.
        exchange: How its tokens travel.
        levels: Runs of the drafter for one tree of drafts; 0 where drafts are no trees.
        prefix: Tokens that the cloud injects.
        decisions, sent: [pictures, T], as `Drawn` has them.
    """

    name: str
    exchange: Exchange
    levels: int
    prefix: int
    decisions: NDArray[np.uint8]
    sent: NDArray[np.uint8]

    @property
    def calls(self) -> float:
        """Share of the tokens that are not the device's alone, prefix included."""
        return float((self.decisions != LOCAL).mean())

    @property
    def stories(self) -> list[Story]:
        """The pictures, one by one."""
        past = np.arange(self.decisions.shape[1]) >= self.prefix
        return [
            Story(
                self.prefix,
                past & ~np.isin(decisions, (PREFIX, LOCAL, AMENDED)),
                np.isin(decisions, (CORRECTED, AMENDED)),
                sent,
            )
            for decisions, sent in zip(self.decisions, self.sent, strict=True)
        ]


def record(work: Path, shipped: Shipped, captions: Sequence[str]) -> list[Recorded]:
    """Draws a picture of each caption with every method, from a training folder's checkpoints.

    Raises:
        InvalidInputError: A checkpoint is missing or cannot be read.
    """
    family, ours = load_family(work), shipped.method
    setting = Setting(shipped, shipped.sampling, 0.0, family.tokens)  # the baselines have no rate
    methods = [
        cloud_only(shipped.sampling),
        *(method(name, setting) for name in _BASELINES),
        replace(ours, name=f"{OURS}, waiting", exchange="wait"),
        ours,
    ]
    return [_draw(family, each, captions) for each in methods]


def _draw(family: Family, each: Method, captions: Sequence[str]) -> Recorded:
    drawn = decode(family, each, list(captions), list(range(len(captions))))
    levels = each.rule.levels if isinstance(each.rule, Tree) else 0
    return Recorded(each.name, each.exchange, levels, each.prefix, drawn.decisions, drawn.sent)


def save(path: Path, recorded: Sequence[Recorded]) -> None:
    """Write what was recorded.

    Raises:
        OutputError: The file cannot be written.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    for index, each in enumerate(recorded):
        header = [each.name, each.exchange, str(each.levels), str(each.prefix)]
        arrays[f"{index}_method"] = np.array(header)
        arrays[f"{index}_decisions"], arrays[f"{index}_sent"] = each.decisions, each.sent
    try:
        with path.open("wb") as file:  # given a name, numpy would add a suffix to it
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> list[Recorded]:
    """Read what was recorded.

    Raises:
        InvalidInputError: The file is missing, or is none of `save`'s.
    """
    try:
        with np.load(path) as file:
            arrays = dict(file)
        return [_recorded(arrays, index) for index in range(len(arrays) // 3)]
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(f"{path} holds no recorded decisions: {error}") from error


def _recorded(arrays: dict[str, NDArray[np.generic]], index: int) -> Recorded:
    name, exchange, levels, prefix = (str(field) for field in arrays[f"{index}_method"])
    known = {str(each): each for each in get_args(Exchange)}
    decisions, sent = arrays[f"{index}_decisions"], arrays[f"{index}_sent"]
    return Recorded(
        name,
        known[exchange],
        int(levels),
        int(prefix),
        decisions.astype(np.uint8),
        sent.astype(np.uint8),
    )
