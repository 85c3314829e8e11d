"""The colours of the demonstration's maps, chosen to stay apart for colour-blind eyes."""

import numpy as np
from numpy.typing import NDArray

from simulations.demonstration.pictures import DECISIONS

Rgb = tuple[int, int, int]

INK: Rgb = (24, 30, 42)
QUIET: Rgb = (108, 118, 134)
PAPER: Rgb = (247, 248, 250)
CARD: Rgb = (255, 255, 255)
EDGE: Rgb = (226, 230, 236)

DECISION_COLOURS: dict[str, Rgb] = {
    "prefix": (176, 186, 200),
    "local": (64, 156, 140),
    "verified": (244, 196, 92),
    "corrected": (214, 72, 88),
    "unverified": (166, 140, 204),
}
DECISION_MEANINGS: dict[str, str] = {
    "prefix": "drawn by the cloud before the device began",
    "local": "drawn and kept on the device",
    "verified": "the device was unsure; the cloud drew the same",
    "corrected": "the device was unsure; the cloud drew another",
    "unverified": "the device was unsure; the cloud was out of reach",
}
# From certain to uncertain: dark violet over rose to pale yellow, rising in lightness.
_RAMP = np.array(
    [
        (20, 16, 54),
        (62, 26, 104),
        (114, 36, 120),
        (168, 52, 112),
        (220, 84, 94),
        (246, 140, 96),
        (252, 198, 132),
        (252, 246, 196),
    ],
    np.float64,
)


def decision_pixels(decisions: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Colours [side, side, 3] of decisions [side, side]."""
    table = np.array([DECISION_COLOURS[name] for name in DECISIONS], np.uint8)
    pixels: NDArray[np.uint8] = table[decisions]
    return pixels


def ramp_pixels(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours [..., 3] of values [...]: 0 is the darkest, 1 the brightest; beyond is cut."""
    place = np.clip(values, 0, 1) * (len(_RAMP) - 1)
    below = np.minimum(place.astype(np.int64), len(_RAMP) - 2)
    rest = (place - below)[..., None]
    mixed = _RAMP[below] * (1 - rest) + _RAMP[below + 1] * rest
    pixels: NDArray[np.uint8] = np.rint(mixed).astype(np.uint8)
    return pixels
