"""The training pictures in another look, for a cloud model that draws otherwise from now on."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.models.image_tokenizer import ImageTokenizer, to_unit
from fleet.training.budget import Bar
from fleet.training.economy import encode_economically, fit_law
from fleet.training.examples import Examples, sample_of_law

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601
_BATCH = 64


def in_another_look(
    examples: Examples, tokenizer: ImageTokenizer, colour: float, bar: Bar
) -> Examples:
    """The same examples with the share `colour` of their colour left: at 0 they are grey.

    Codes are priced by the law of the pictures as they were, so a code that fits both looks stays.
    Only pictures as they are have another look, not their variants.
    """
    pictures, tokens = examples.pictures, examples.tokens.copy()
    law, rows = fit_law(tokenizer, sample_of_law(pictures)), pictures.rows("train")
    for start in range(0, len(rows), _BATCH):
        part = rows[start : start + _BATCH]
        batch = to_unit(torch.from_numpy(faded(pictures.pixels[part], colour)))
        tokens[part, 0] = encode_economically(tokenizer, batch, law).numpy().astype(np.uint16)
        bar.show((start + len(part)) / len(rows), f"{start + len(part)} pictures")
    return replace(examples, tokens=tokens)


def faded(pixels: NDArray[np.uint8], colour: float) -> NDArray[np.uint8]:
    """Pixels [..., 3], moved towards the grey of their luma; `colour` 1 leaves them."""
    grey = (pixels @ _LUMA)[..., None]
    return (grey + colour * (pixels - grey)).round().clip(0, 255).astype(np.uint8)
