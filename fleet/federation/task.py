"""What a run of rounds trains."""

from dataclasses import dataclass

from fleet.federation.samples import Samples
from fleet.models.head_weights import HeadWeights


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """The head whose change is trained, and the hub's own samples to validate with, if any."""

    head: HeadWeights
    holdout: Samples | None = None
