"""Rules that know both models' word before they ask: no device can, scores are held against it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simulations.evaluation.moment import CORRECTED, LOCAL, VERIFIED, Moment
from simulations.evaluation.rules.base import NO_BAR, Bar, Settled
from simulations.evaluation.rules.gates import harm

Sees = Literal["match", "harm", "TV"]


@dataclass(frozen=True, slots=True)
class Oracle:
    """The device's draft, but the cloud's draw where what is seen of the two is above a threshold.

    With `match` and `harm` and a threshold of 0 nothing that differs is kept.

    Attributes:
        sees: "match": whether the two draws of one noise differ; a coin between 0 and 1 where they
            do, else 0, so that a threshold leaves out some, wherever they lie. "harm": the squared
            distance of the two in the codebook. "TV": the total variation of the two laws.
        threshold: What is kept at most.
    """

    sees: Sees
    threshold: float = 0.0
    uses_device: ClassVar[bool] = True
    uses_cloud: ClassVar[bool] = True
    bar: ClassVar[Bar] = NO_BAR

    def begin(self, count: int) -> "Oracle":  # noqa: ARG002  # it remembers nothing
        return self

    def settle(self, moment: Moment) -> Settled:
        score = self._score(moment)
        asked, differ = score > self.threshold, moment.drafts != moment.own
        decisions = np.where(asked, np.where(differ, CORRECTED, VERIFIED), LOCAL).astype(np.uint8)
        tokens = np.where(asked, moment.own, moment.drafts)
        return Settled(tokens, decisions, np.zeros(len(tokens), np.uint8), score)

    def _score(self, moment: Moment) -> NDArray[np.float64]:
        match self.sees:
            case "match":
                return np.where(moment.drafts != moment.own, moment.score("random"), 0.0)
            case "harm":
                return harm(moment)
            case "TV":
                apart = np.abs(moment.device_law - moment.cloud_law)
                distance: NDArray[np.float64] = apart.sum(axis=1) / 2
                return distance
