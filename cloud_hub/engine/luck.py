"""What of one picture is chosen by its shared noise: for spot checks, and to teach its device."""

import numpy as np
from numpy.typing import NDArray

from cloud_hub.engine.requests import Mask, Tokens
from fleet.decoding.noise import Stream, uniform


class Luck:
    """What chance says about the `positions` of the picture with this seed."""

    __slots__ = ("_checks", "_positions", "_seed")

    def __init__(self, seed: int, positions: int) -> None:
        self._seed = seed
        self._positions = positions
        self._checks: NDArray[np.float64] | None = None

    def chosen(self, positions: Tokens, share: float) -> Mask:
        """Which of the positions [k] are among the share that is checked, or taught."""
        if self._checks is None:
            self._checks = uniform(self._seed, np.arange(self._positions), 1, Stream.CHECK)[:, 0]
        return self._checks[positions] < share
