"""Training of a drafter: distilled from the cloud's states and laws on the cloud's own drawings.

Loss and interval head are those of the reference family's device (`fleet.training.device`), with
EAGLE's distance of states beside them. A device drafts on states of its own, far beyond one step,
so a share of the batches starts from such states (method: scheduled rollout).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.checkpoint import load_checkpoint, save_checkpoint
from fleet.models.drafter import Drafter, Start
from fleet.models.linked import LinkedModel
from fleet.training.average import WeightAverage
from fleet.training.budget import Bar, Budget, learning_rate_factor
from fleet.training.device import ALL_TERMS_FROM, RADIUS_RATE, Recipe, device_loss
from fleet.training.disturb import disturb
from fleet.training.drawings import Drawings, joint_conditions
from fleet.training.keep import Stage, keep_training
from fleet.training.metrics import Figures, monitor

CHECKPOINT, TRAINING = "drafter.pt", "drafter.training.pt"

STATE_WEIGHT = 1.0
# Guidance reads the rows without caption as often as those with it; they differ less.
WITHHELD_SHARE = 0.3
ROLLOUT_SHARE = 0.25
ROLLOUT_DEPTHS = (8, 32)
AVERAGE_DECAY = 0.999
SAVE_EVERY_S = 300.0
VALIDATION_PICTURES = 16
_VALIDATION_POSITIONS = 32


@dataclass(frozen=True)
class Course:
    """How a drafter is trained."""

    rate: float = 3e-4
    batch: int = 16
    positions: int = 64  # of a picture, whose laws a step looks at
    recipe: Recipe = field(default_factory=lambda: Recipe(disturbed=0.25))


@dataclass(frozen=True)
class Lesson:
    """Histories, with the cloud's states [B, T, D] on them; state i predicts token i."""

    tokens: Tensor  # [B, T]
    states: Tensor
    start: Start


@dataclass
class DrafterRun:
    """A drafter in training, with everything a checkpoint holds."""

    cloud: LinkedModel
    drafter: Drafter
    optimizer: torch.optim.Optimizer
    average: WeightAverage
    budget: Budget
    course: Course
    step: int = 0

    @classmethod
    def start(cls, cloud: LinkedModel, minutes: float, course: Course) -> "DrafterRun":
        """Begin with what a drafter takes over from the cloud."""
        drafter = Drafter.of(cloud.engine.transformer, course.recipe.rank).to(cloud.engine.device)
        radius = [value for name, value in drafter.named_parameters() if "radius" in name]
        others = [
            value
            for name, value in drafter.named_parameters()
            if "radius" not in name and value.requires_grad
        ]
        groups = [{"params": others, "peak": course.rate}, {"params": radius, "peak": RADIUS_RATE}]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        average = WeightAverage(drafter.trained(), AVERAGE_DECAY)
        return cls(cloud, drafter, optimizer, average, Budget(minutes * 60), course)

    def save(self, path: Path) -> None:
        """Write the checkpoint that `load` goes on from."""
        payload: dict[str, Any] = {
            "trained": self.drafter.trained(),
            "average": self.average.weights,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "used_s": self.budget.used_s,
        }
        save_checkpoint(path, payload)

    def load(self, path: Path) -> None:
        """Take the state of a checkpoint; the budget's total stays as given."""
        state = load_checkpoint(path)
        self.drafter.load_trained(state["trained"])
        device = self.cloud.engine.device
        self.average.load({name: value.to(device) for name, value in state["average"].items()})
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.budget.used_s = state["step"], state["used_s"]

    @torch.no_grad()
    def lesson(self, captions: list[str], tokens: NDArray[np.int64], withheld: Tensor) -> Lesson:
        """Run the cloud over histories [B, T]; rows of `withheld` [B] see no caption."""
        model, device = self.cloud.engine.transformer, self.cloud.engine.device
        rows = torch.arange(len(tokens)) + len(tokens) * withheld.long()
        condition = joint_conditions(self.cloud, captions).at(rows.to(device))
        ids = torch.from_numpy(tokens).to(device)
        states = model.hidden_after(condition, ids[:, :-1])
        return Lesson(ids, states, Start.of(condition))


def train_drafter(
    work: Path, cloud: LinkedModel, minutes: float, course: Course, seed: int, bar: Bar
) -> DrafterRun:
    """Train, or go on training, `drafter.training.pt`; `drafter.pt` holds the average.

    Raises:
        InvalidInputError: There are no drawings, or the checkpoint is another model's.
    """
    torch.manual_seed(seed)
    drawings, run = Drawings.load(work), DrafterRun.start(cloud, minutes, course)
    if (work / TRAINING).exists():
        run.load(work / TRAINING)
    stage = Stage(
        checkpoint=work / TRAINING,
        curve=work / "drafter.jsonl",
        take_step=lambda: train_step(run, drawings, seed),
        look=lambda: _publish(work, run, drawings),
        save_every_s=SAVE_EVERY_S,
    )
    keep_training(run, stage, bar)
    run.drafter.load_trained(run.average.weights)
    return run


def train_step(run: DrafterRun, drawings: Drawings, seed: int) -> Figures:
    """Take one step on a batch that only seed and step number decide; return its figures."""
    course, rng = run.course, np.random.default_rng((seed, run.step))
    rows = rng.choice(drawings.rows("train"), course.batch)
    withheld = torch.from_numpy(rng.random(course.batch) < WITHHELD_SHARE)
    tokens = disturb(drawings.tokens[rows], course.recipe.disturbed, rng)
    lesson = run.lesson([drawings.captions[row] for row in rows], tokens, withheld)
    depth = int(rng.integers(*ROLLOUT_DEPTHS, endpoint=True)) * (rng.random() < ROLLOUT_SHARE)
    factor = learning_rate_factor(run.budget.fraction, warm_up=0.03, decay_from=0.5)
    for group in run.optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    last = tokens.shape[1] - 1
    positions = torch.from_numpy(rng.permutation(last)[: course.positions])
    device = run.cloud.engine.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        made = _states(run.drafter, lesson, min(depth, last))
    loss, figures = _loss(run, lesson, made, positions.to(device))
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.drafter.parameters(), 0.5)
    run.optimizer.step()
    run.step += 1
    run.average.update(run.drafter.trained(), run.step)
    return figures


@torch.no_grad()
def look(run: DrafterRun, drawings: Drawings) -> Figures:
    """Return validation figures of laws made from the cloud's states, and from own ones alone."""
    rows = drawings.rows("validation")
    rows = rows[np.linspace(0, len(rows) - 1, min(VALIDATION_PICTURES, len(rows))).astype(int)]
    captions = [drawings.captions[row] for row in rows]
    lesson = run.lesson(captions, drawings.tokens[rows], torch.zeros(len(rows), dtype=torch.bool))
    last = lesson.tokens.shape[1] - 1
    places = np.linspace(0, last - 1, min(_VALIDATION_POSITIONS, last)).astype(int)
    target = _laws(run, lesson, torch.from_numpy(places))
    figures: Figures = {}
    for name, depth in (("given", 0), ("own", last)):
        hidden = _states(run.drafter, lesson, depth)[:, places].float()
        center, radius = run.drafter.head(hidden)
        seen = monitor(*(each.flatten(0, 1).cpu() for each in (target, center, radius)))
        figures |= {f"{name}_{figure}": value for figure, value in seen.items()}
    return figures


def _publish(work: Path, run: DrafterRun, drawings: Drawings) -> Figures:
    """Write the average as `drafter.pt` and return its figures; the run's own weights stay."""
    save_checkpoint(work / CHECKPOINT, {"trained": run.average.weights, "step": run.step})
    own = {name: value.clone() for name, value in run.drafter.trained().items()}
    run.drafter.load_trained(run.average.weights)
    figures = look(run, drawings)
    run.drafter.load_trained(own)
    return figures


def _states(drafter: Drafter, lesson: Lesson, depth: int) -> Tensor:
    """Return the drafter's states [B, T - 1, D] of the tokens after the first."""
    tokens, states = lesson.tokens[:, :-1], lesson.states[:, :-1].float()
    if depth:
        states = drafter.body.own_states(tokens, states, lesson.start, depth)
    made: Tensor = drafter.body(tokens, states, lesson.start)
    return made


@torch.no_grad()
def _laws(run: DrafterRun, lesson: Lesson, positions: Tensor) -> Tensor:
    """Return the cloud's laws [B, P, V] of tokens after the first."""
    logits: Tensor = run.cloud.engine.transformer.output(lesson.states[:, 1:][:, positions])
    return logits.float().softmax(dim=-1)


def _loss(
    run: DrafterRun, lesson: Lesson, made: Tensor, positions: Tensor
) -> tuple[Tensor, Figures]:
    made, head = made.float(), run.drafter.head
    distance = F.smooth_l1_loss(made, lesson.states[:, 1:].float())
    hidden = made[:, positions]
    loss, figures = device_loss(
        _laws(run, lesson, positions).flatten(0, 1),
        head.center(hidden).flatten(0, 1),
        head.radius(hidden.detach()).flatten(0, 1),
        run.course.recipe,
        all_terms=run.budget.fraction >= ALL_TERMS_FROM,
    )
    return loss + STATE_WEIGHT * distance, figures | {"states": float(distance.detach())}
