"""What the experiment is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fleet.federation.plan import Plan
from simulations.evaluation.catalogue import Shipped

Arm = Literal["cloud", "captions"]
Condition = Literal["before", "no rounds", "inter-dro", "distillation", "central"]

ARMS: tuple[Arm, ...] = get_args(Arm)
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
LEARNED: tuple[Condition, ...] = CONDITIONS[2:]


@dataclass(frozen=True, slots=True)
class Size:
    """How many devices draw how much, and how much they learn.

    Attributes:
        devices: Of the fleet, each with wishes of its own.
        pictures: That each draws to learn from.
        measured: That each draws under each condition, of captions it has not learned from.
        law_share: Share of the drafts of which the hub tells the cloud's law.
        further: Steps by which the new cloud model is trained further.
        peak: Of the learning rate of that training, over the one that the cloud was trained at.
        colour: The share of their colour that the pictures of that training keep.
    """

    devices: int = 20
    pictures: int = 30
    measured: int = 6
    law_share: float = 0.1
    further: int = 200
    peak: float = 0.5
    colour: float = 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """A run of the experiment.

    Attributes:
        work: Training folder with pictures, tokens and captions.
        out: Folder of everything that is drawn and learned.
        models: Training folder with the pair's checkpoints.
        cloud: Checkpoint of the new cloud model, or None: the pair's own, trained further.
        shipped: Sampling, policy with its threshold, and prefix: the same under every condition.
        plan: Of the rounds; `loss` is set by the condition.
    """

    work: Path
    out: Path
    models: Path
    cloud: Path | None
    shipped: Shipped
    plan: Plan
    size: Size = Size()
    arms: tuple[Arm, ...] = ARMS
    seed: int = 1
    processes: int = 2
