"""What a drafter learns from: pictures that the cloud model itself draws of given captions.

A drafter is asked about histories that the cloud would have drawn, so those are what it is
trained on; no other pictures are needed. Tokens take half a kilobyte a picture, and the cloud's
states and laws, which take a thousand times as much, are computed again when they are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.errors import InvalidInputError
from fleet.models.conditions import Condition, Prompt, joined
from fleet.models.linked import LinkedModel
from fleet.training.budget import Bar
from fleet.training.sampling import SamplingRule, draw_conditions

FOLDER = "drawings"


@dataclass(frozen=True)
class Drawings:
    """Pictures and their captions; every tenth is kept aside for validation."""

    tokens: NDArray[np.int64]  # [N, T]
    captions: tuple[str, ...]

    @classmethod
    def load(cls, work: Path) -> "Drawings":
        """Read what `draw_pictures` wrote.

        Raises:
            InvalidInputError: There is nothing, or something else.
        """
        files = sorted((work / FOLDER).glob("*.npz"))
        if not files:
            raise InvalidInputError(f"no drawings in {work}: run the draw step first")
        tokens, captions = [], []
        for file in files:
            try:
                with np.load(file) as arrays:
                    tokens.append(arrays["tokens"].astype(np.int64))
                    captions += [str(caption) for caption in arrays["captions"]]
            except (OSError, ValueError, KeyError) as error:
                raise InvalidInputError(f"{file} holds no drawings: {error}") from error
        if len({part.shape[1] for part in tokens}) > 1:
            raise InvalidInputError(f"{work} holds drawings of several sizes: use another folder")
        return cls(np.concatenate(tokens), tuple(captions))

    def rows(self, split: str) -> NDArray[np.int64]:
        """Return the rows of "train" or "validation"."""
        every = np.arange(len(self.captions), dtype=np.int64)
        return np.flatnonzero((every % 10 == 9) == (split == "validation"))


def draw_pictures(  # noqa: PLR0913 - a stage's own
    work: Path,
    model: LinkedModel,
    captions: Sequence[str],
    rule: SamplingRule,
    *,
    batch: int,
    seed: int,
    bar: Bar,
) -> int:
    """Draw one picture of each caption, a file a batch; files that are there are not drawn again.

    Returns:
        How many pictures the folder holds.

    Raises:
        InvalidInputError: The model cannot read a caption.
    """
    folder = work / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    device = model.engine.device
    for start in range(0, len(captions), batch):
        bar.show(start / len(captions), f"{start} pictures")
        file = folder / f"{start:07d}.npz"
        if file.exists():
            continue
        part = captions[start : start + batch]
        condition = joint_conditions(model, part)
        if rule.guidance <= 1:
            condition = condition.at(torch.arange(len(part), device=device))
        generator = torch.Generator(device).manual_seed(seed + start)
        drawn = draw_conditions(model.engine.transformer, condition, rule, generator)
        partial = file.with_name("partial.npz.tmp")
        with partial.open("wb") as stream:
            np.savez(stream, tokens=drawn.cpu().numpy().astype(np.uint16), captions=part)
        partial.replace(file)
    return len(captions)


def joint_conditions(model: LinkedModel, captions: Sequence[str]) -> Condition | Prompt:
    """Return the conditions of captions, and after them those of each one withheld: 2B rows.

    Raises:
        InvalidInputError: The model cannot read a caption.
    """
    pairs = [_pair(model, caption) for caption in captions]
    order = torch.arange(2 * len(pairs)).view(-1, 2).T.flatten().to(model.engine.device)
    return joined(pairs).at(order)


def _pair(model: LinkedModel, caption: str) -> Condition | Prompt:
    try:
        return model.condition_pair(model.captions.encode(caption))
    except InvalidInputError as error:
        raise InvalidInputError(f"caption {caption!r}: {error}") from error
