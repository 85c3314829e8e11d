"""Training of the cloud model: Muon and AdamW, a weight average, a schedule driven by the clock."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fleet.errors import InvalidInputError
from fleet.models.checkpoint import load_checkpoint, load_weights, save_checkpoint
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.training.average import WeightAverage
from fleet.training.budget import Bar, Budget, learning_rate_factor
from fleet.training.disturb import disturb
from fleet.training.examples import Batch, Examples
from fleet.training.keep import Stage, keep_training
from fleet.training.muon import Muon
from fleet.training.released import CLOUD_START

BATCH = 24
CAPTION_DROPOUT = 0.1
CAPTION_WEIGHT = 16
SKETCH_SLOTS, SKETCH_WIDTH = 32, 128
MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
SKETCH_RATE = 5e-4
WEIGHT_DECAY = 0.03
AVERAGE_DECAY = 0.99
SAVE_EVERY_S = 240.0
CHECK_EVERY_S = 480.0
VALIDATION_PICTURES = 256
# The schedule: the rate stays at its peak for this share of the time, then falls to zero.
DECAY_FROM = 0.35
_CHECKPOINT = "cloud.training.pt"


@dataclass(frozen=True)
class Pace:
    """How a run spends its time.

    Up to the share `varied` of it pictures are shifted and shrunken too; the rest, at falling
    rates, sees them as they are, so that the last thing learned is what shall be drawn.
    The share `disturbed` of the pictures has a history that is wrong in places. `peak` scales the
    learning rates.
    """

    varied: float = 0.4
    disturbed: float = 0.5
    peak: float = 1.0
    compiled: bool = False
    half: bool = False


def cloud_config(n_word: int) -> TransformerConfig:
    """Return the size of the shipped cloud model."""
    return TransformerConfig(
        n_layer=5,
        n_head=4,
        dim=256,
        ffn=704,
        vocab_size=1024,
        grid=16,
        n_word=n_word,
        caption_weight=CAPTION_WEIGHT,
        sketch_slots=SKETCH_SLOTS,
        sketch_width=SKETCH_WIDTH,
    )


@dataclass
class CloudRun:
    """A model in training, with everything a checkpoint holds."""

    model: Transformer
    optimizers: tuple[torch.optim.Optimizer, ...]
    average: WeightAverage
    budget: Budget
    step: int = 0
    best: float = float("inf")

    @classmethod
    def start(cls, config: TransformerConfig, minutes: float) -> "CloudRun":
        """Begin with fresh weights."""
        model = Transformer(config)
        average = WeightAverage(model.state_dict(), AVERAGE_DECAY)
        return cls(model, make_optimizers(model), average, Budget(minutes * 60))

    def save(self, path: Path) -> None:
        """Write the checkpoint that `load` goes on from."""
        payload: dict[str, Any] = {
            "config": asdict(self.model.config),
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "used_s": self.budget.used_s,
            "best": self.best,
        }
        save_checkpoint(path, payload)

    def load(self, path: Path) -> None:
        """Take the state of a checkpoint; the budget's total stays as given."""
        state = load_checkpoint(path)
        load_weights(self.model, state["model"])
        self.average.load(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.best = state["step"], state["best"]
        self.budget.used_s = state["used_s"]


def make_optimizers(model: Transformer) -> tuple[torch.optim.Optimizer, ...]:
    """Return Muon for the matrices between layers, AdamW for embeddings, output and norms.

    A sketch, which knows its captions by then, moves slowly.
    """
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    sketch: list[Tensor] = []
    for name, weight in model.named_parameters():
        hidden = name.startswith("layers.") or "cap_proj" in name
        if name.startswith("sketch."):
            sketch.append(weight)
        else:
            (matrices if hidden and weight.ndim == 2 else others).append(weight)
    muon = Muon(matrices, lr=MATRIX_RATE, weight_decay=WEIGHT_DECAY)
    adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    if sketch:
        adam.add_param_group({"params": sketch, "peak": SKETCH_RATE})
    return muon, adam


def train_cloud(
    work: Path, examples: Examples, minutes: float, seed: int, bar: Bar, pace: Pace
) -> None:
    """Train, or go on training, `cloud.training.pt`; `cloud.pt` holds the average.

    A run without a checkpoint starts from the weights of `cloud.start.pt` if there are any.

    Raises:
        InvalidInputError: `pace` asks for bfloat16 of a processor that has no arithmetic for it.
    """
    if pace.half and not _computes_bfloat16():
        raise InvalidInputError(
            "this processor has no arithmetic for bfloat16 and would compute it in software,"
            " a hundred times slower: leave --half out"
        )
    torch.manual_seed(seed)
    run = _begin(work, cloud_config(examples.n_word), minutes)
    if pace.compiled:
        run.model.compile()
    stage = Stage(
        checkpoint=work / _CHECKPOINT,
        curve=work / "cloud.jsonl",
        take_step=lambda: {"loss": train_step(run, examples, seed, pace)},
        look=lambda: {"validation": _publish(work, run, examples)},
        save_every_s=SAVE_EVERY_S,
        look_every_s=CHECK_EVERY_S,
    )
    keep_training(run, stage, bar)


def _begin(work: Path, config: TransformerConfig, minutes: float) -> CloudRun:
    run = CloudRun.start(config, minutes)
    if (work / _CHECKPOINT).exists():
        run.load(work / _CHECKPOINT)
    elif (work / CLOUD_START).exists():
        load_weights(run.model, load_checkpoint(work / CLOUD_START)["model"])
        run.average = WeightAverage(run.model.state_dict(), AVERAGE_DECAY)
    return run


def _computes_bfloat16() -> bool:
    able = torch.cpu.get_capabilities()
    return any(able.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def train_step(run: CloudRun, examples: Examples, seed: int, pace: Pace) -> float:
    """Take one step on a batch that only seed and step number decide; return its loss."""
    rng = np.random.default_rng((seed, run.step))
    batch = examples.draw(BATCH, rng, varied=run.budget.fraction < pace.varied)
    withheld = torch.from_numpy(rng.random(BATCH) < CAPTION_DROPOUT)
    factor = learning_rate_factor(run.budget.fraction, warm_up=0.01, decay_from=DECAY_FROM)
    for optimizer, rate in zip(run.optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = group.get("peak", rate) * factor * pace.peak
    history = torch.from_numpy(disturb(batch.tokens.numpy(), pace.disturbed, rng))
    run.model.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=pace.half):
        loss = cross_entropy(run.model, batch, withheld, history)
    run.model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
    run.step += 1
    run.average.update(run.model.state_dict(), run.step)
    return float(loss.detach())


def cross_entropy(
    model: Transformer,
    batch: Batch,
    withheld: Tensor | None = None,
    history: Tensor | None = None,
) -> Tensor:
    """Return the mean loss per token in nats; `history` [B, T] is seen in place of the tokens."""
    seen = batch.tokens if history is None else history
    _, logits = model(seen[:, :-1], batch.captions, withheld)
    return F.cross_entropy(logits.flatten(0, 1).float(), batch.tokens.flatten())


@torch.no_grad()
def validation_loss(
    model: Transformer, examples: Examples, split: str = "validation", *, astray: bool = False
) -> float:
    """Return the loss per token in nats on pictures of a split, by default of validation.

    With `astray` each picture has another one's caption: what captions are worth to the model.
    """
    model.eval()
    batch = examples.take(split, VALIDATION_PICTURES)
    captions = batch.captions.roll(1, dims=0) if astray else batch.captions
    parts = zip(batch.tokens.split(32), captions.split(32), strict=True)
    losses = [cross_entropy(model, Batch(*part)) * len(part[0]) for part in parts]
    return float(sum(losses)) / len(batch.tokens)


def _publish(work: Path, run: CloudRun, examples: Examples) -> float:
    """Write the average as `cloud.pt`, and as `cloud.best.pt` too if no other did so well.

    Returns its loss on unseen emoji.

    The last average is what ships: its loss on unseen emoji is hardly higher than the best one,
    and the emoji it knows, which people ask for, are drawn far better.
    """
    averaged = Transformer(run.model.config)
    averaged.load_state_dict(run.average.weights)
    loss = validation_loss(averaged, examples)
    payload = {
        "config": asdict(run.model.config),
        "model": run.average.weights,
        "validation": loss,
        "step": run.step,
    }
    save_checkpoint(work / "cloud.pt", payload)
    if loss < run.best:
        run.best = loss
        save_checkpoint(work / "cloud.best.pt", payload)
    return loss
