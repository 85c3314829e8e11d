"""Training of the device model: distilled from the cloud, with a calibrated interval head."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fleet.errors import InvalidInputError
from fleet.models.checkpoint import (
    DeviceParts,
    load_checkpoint,
    load_device,
    load_weights,
    save_checkpoint,
)
from fleet.models.interval_head import IntervalHead, log_odds
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.training.average import WeightAverage
from fleet.training.budget import Bar, Budget, learning_rate_factor
from fleet.training.cloud import make_optimizers
from fleet.training.examples import Batch, Examples
from fleet.training.keep import Stage, keep_training
from fleet.training.losses import (
    Robust,
    divergence,
    faithful_loss,
    lower_bound_loss,
    radius_loss,
    total_variation,
)
from fleet.training.metrics import monitor
from fleet.training.released import DEVICE_START
from fleet.training.teacher import Teacher

BATCH = 32
RANK = 32
# A step looks at one in so many positions: losses over all codes cost more than the model.
POSITIONS_SHARE = 2
CAPTION_DROPOUT = 0.1
MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
# The radius joins late and has far to go, from one half everywhere.
RADIUS_RATE = 1e-2
AVERAGE_DECAY = 0.995
SAVE_EVERY_S = 60.0
VALIDATION_PICTURES = 128
# The interval terms join once the center is near the cloud.
ALL_TERMS_FROM = 0.4

ANCHOR_WEIGHT = 1.0  # L1 distance
KL_WEIGHT = 1.1  # alignment and anchor together
ROBUST_WEIGHT = 0.1
RADIUS_WEIGHT = 1.0
COVERAGE = 0.9

Arm = Literal["sound", "faithful"]


@dataclass(frozen=True)
class Recipe:
    """Which losses train the device model, on what, and the rank of its radius (0: full)."""

    arm: Arm = "sound"
    robust: Robust = field(default_factory=Robust)
    rank: int = RANK
    disturbed: float = 0.0


def device_config(cloud: TransformerConfig) -> TransformerConfig:
    """Return the size of the shipped device model for a cloud model."""
    sizes = {**asdict(cloud), "n_layer": 1, "n_head": 4, "dim": 128, "ffn": 352, "dropout": 0.0}
    return TransformerConfig(**{**sizes, "sketch_width": sizes["sketch_width"] // 2})


class DeviceModel(nn.Module):
    """A small transformer whose output layer is the center of an interval head.

    In the sound arm radii do not train the transformer; in the faithful one all gradients live.
    """

    def __init__(self, config: TransformerConfig, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.transformer = Transformer(config)
        self.head = IntervalHead(self.transformer.output, recipe.rank)

    def forward(
        self, batch: Batch, withheld: Tensor | None, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return center logits and radii [B, P, V]."""
        hidden = self.transformer.hidden(batch.tokens[:, :-1], batch.captions, withheld)
        hidden = hidden[:, positions]
        seen = hidden if self.recipe.arm == "faithful" else hidden.detach()
        return self.transformer.output(hidden), self.head.radius(seen)


@dataclass
class DeviceRun:
    """A device model in training, with everything a checkpoint holds."""

    model: DeviceModel
    optimizers: tuple[torch.optim.Optimizer, ...]
    average: WeightAverage
    budget: Budget
    step: int = 0

    @classmethod
    def start(cls, cloud: Transformer, minutes: float, recipe: Recipe = Recipe()) -> "DeviceRun":
        """Begin with what a model of half the width can take over from the cloud."""
        model = DeviceModel(device_config(cloud.config), recipe)
        _take_over(model.transformer, cloud)
        muon, adam = make_optimizers(model.transformer)
        radius = [value for name, value in model.head.named_parameters() if "radius" in name]
        adam.add_param_group({"params": radius, "peak": RADIUS_RATE})
        average = WeightAverage(model.state_dict(), AVERAGE_DECAY)
        return cls(model, (muon, adam), average, Budget(minutes * 60))

    def begin_with(self, released: DeviceParts) -> None:
        """Take the weights of a released device model in place of what the cloud gave.

        Raises:
            FleetError: It has other sizes than this recipe asks for.
        """
        load_weights(self.model.transformer, released.transformer.state_dict())
        load_weights(self.model.head, released.head.state_dict())
        self.average = WeightAverage(self.model.state_dict(), AVERAGE_DECAY)

    def save(self, path: Path) -> None:
        """Write the checkpoint that `load` goes on from."""
        payload: dict[str, Any] = {
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "used_s": self.budget.used_s,
            "recipe": asdict(self.model.recipe),
        }
        save_checkpoint(path, payload)

    def load(self, path: Path) -> None:
        """Take the state of a checkpoint; the budget's total stays as given.

        Raises:
            InvalidInputError: It was trained by another recipe.
        """
        state, mine = load_checkpoint(path), asdict(self.model.recipe)
        if state.get("recipe", asdict(Recipe())) != mine:
            raise InvalidInputError(f"{path} was begun by another recipe: move it away, or name it")
        load_weights(self.model, state["model"])
        self.average.load(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.budget.used_s = state["step"], state["used_s"]


def train_device(  # noqa: PLR0913 - a stage's own
    work: Path,
    examples: Examples,
    cloud: Transformer,
    minutes: float,
    seed: int,
    bar: Bar,
    recipe: Recipe = Recipe(),
) -> None:
    """Train, or go on training, `device.training.pt`; `device.pt` holds the average.

    A run without a checkpoint starts from the weights of `device.start.pt` if there are any, else
    from what a smaller model can take over from the cloud.
    """
    torch.manual_seed(seed)
    teacher = Teacher(cloud, examples, recipe.disturbed)
    run = DeviceRun.start(cloud, minutes, recipe)
    checkpoint = work / "device.training.pt"
    if checkpoint.exists():
        run.load(checkpoint)
    elif (work / DEVICE_START).exists():
        run.begin_with(load_device(work / DEVICE_START))
    stage = Stage(
        checkpoint=checkpoint,
        curve=work / "device.jsonl",
        take_step=lambda: train_step(run, teacher, seed),
        look=lambda: _publish(work, run, teacher),
        save_every_s=SAVE_EVERY_S,
        look_every_s=SAVE_EVERY_S,
    )
    keep_training(run, stage, bar)


def train_step(run: DeviceRun, teacher: Teacher, seed: int) -> dict[str, float]:
    """Take one step on a batch that only seed and step number decide; return its figures."""
    rng = np.random.default_rng((seed, run.step))
    rows = teacher.rows(BATCH, rng)
    withheld = torch.from_numpy(rng.random(BATCH) < CAPTION_DROPOUT)
    length = run.model.transformer.config.n_token
    positions = torch.from_numpy(rng.permutation(length)[: max(length // POSITIONS_SHARE, 1)])
    batch, target = teacher.laws(rows, withheld, positions)
    factor = learning_rate_factor(run.budget.fraction, warm_up=0.02, decay_from=0.3)
    for optimizer, rate in zip(run.optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = group.get("peak", rate) * factor
    run.model.train()
    center, radius = run.model(batch, withheld, positions)
    loss, figures = device_loss(
        target.flatten(0, 1),
        center.flatten(0, 1),
        radius.flatten(0, 1),
        run.model.recipe,
        all_terms=run.budget.fraction >= ALL_TERMS_FROM,
    )
    run.model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
    run.step += 1
    run.average.update(run.model.state_dict(), run.step)
    return figures


def device_loss(
    target: Tensor,
    center: Tensor,
    radius: Tensor,
    recipe: Recipe = Recipe(),
    *,
    all_terms: bool,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of N positions, and its parts; all arguments are [N, V]."""
    log_center = center.log_softmax(dim=-1)
    kl = divergence(target, log_center).mean()
    distance = total_variation(target, log_center.exp()).mean()
    loss = KL_WEIGHT * kl + 2 * ANCHOR_WEIGHT * distance
    figures = {"kl": float(kl.detach()), "tv": float(distance.detach())}
    if all_terms and recipe.arm == "faithful":
        terms = faithful_loss(target, log_odds(center), radius, recipe.robust)
        loss = torch.stack(list(terms.values())).sum()
        figures |= {name: float(term.detach()) for name, term in terms.items()}
    elif all_terms:
        odds = log_odds(center)
        robust = recipe.robust.loss(lower_bound_loss(target, odds, radius))
        missing = radius_loss(target, odds, radius, COVERAGE).mean()
        loss = loss + ROBUST_WEIGHT * robust + RADIUS_WEIGHT * missing
        figures |= {"robust": float(robust.detach()), "radius": float(missing.detach())}
    return loss, figures


@torch.no_grad()
def _publish(work: Path, run: DeviceRun, teacher: Teacher) -> dict[str, float]:
    """Write `device.pt` from the average, and return its validation figures."""
    averaged = DeviceModel(run.model.transformer.config, run.model.recipe)
    averaged.load_state_dict(run.average.weights)
    positions, seen = torch.arange(averaged.transformer.config.n_token), []
    for batch, target in teacher.validation(VALIDATION_PICTURES):
        center, radius = averaged(batch, None, positions)
        seen.append(monitor(*(each.flatten(0, 1) for each in (target, center, radius))))
    payload = {
        "config": asdict(averaged.transformer.config),
        "model": averaged.transformer.state_dict(),
        "head": averaged.head.state_dict(),
        "rank": averaged.head.rank,
        "step": run.step,
    }
    save_checkpoint(work / "device.pt", payload)
    return {f"validation_{name}": float(np.mean([part[name] for part in seen])) for name in seen[0]}


@torch.no_grad()
def _take_over(device: Transformer, cloud: Transformer) -> None:
    """Copy the caption tables, and the main directions of token embedding and output."""
    for name, value in device.cls_embedding.state_dict().items():
        source = cloud.cls_embedding.state_dict()[name]
        if source.shape == value.shape:
            value.copy_(source)
    for small, large in (
        (device.tok_embeddings.weight, cloud.tok_embeddings.weight),
        (device.output.weight, cloud.output.weight),
    ):
        left, sizes, _ = torch.linalg.svd(large, full_matrices=False)
        small.copy_((left * sizes)[:, : small.shape[1]])
