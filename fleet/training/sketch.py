"""Training of a caption sketch alone: which token a caption lets expect at each place.

No history is needed for that, so a step costs a tenth of one of the whole model, and captions are
seen ten times as often in the same time. The sketch learns to be read by the model's own output
layer; the model that is then trained on finds it in its input, and adds what the tokens tell.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.errors import InvalidInputError
from fleet.models.checkpoint import load_checkpoint, load_transformer, load_weights, save_checkpoint
from fleet.models.interval_head import IntervalHead
from fleet.models.sketch import CaptionSketch
from fleet.models.transformer import Transformer
from fleet.training.budget import Bar, Budget, learning_rate_factor
from fleet.training.cloud import cloud_config
from fleet.training.device import DeviceRun, device_config
from fleet.training.examples import Examples
from fleet.training.keep import Stage, keep_training
from fleet.training.released import CLOUD_START, DEVICE_START

Which = Literal["cloud", "device"]

BATCH = 64
PLACES = 64  # of a picture that one step looks at
RATE = 2e-3
DECAY_FROM = 0.3
SAVE_EVERY_S = 120.0
VALIDATION_PICTURES = 256


@dataclass
class SketchRun:
    """A model whose sketch is in training, with everything a checkpoint holds."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    budget: Budget
    step: int = 0

    @classmethod
    def start(cls, model: Transformer, minutes: float) -> "SketchRun":
        """Begin; an output layer that knows nothing yet learns too, a trained one stays."""
        learning: list[nn.Module] = [_sketch(model)]
        if not model.output.weight.any():
            learning += [model.norm, model.output]
            # Two factors of zero would have no gradient.
            nn.init.normal_(_sketch(model).out.weight, std=0.02)
        model.requires_grad_(False)
        weights = [w.requires_grad_() for module in learning for w in module.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
        return cls(model, optimizer, Budget(minutes * 60))

    def save(self, path: Path) -> None:
        """Write the checkpoint that `load` goes on from."""
        payload: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "used_s": self.budget.used_s,
        }
        save_checkpoint(path, payload)

    def load(self, path: Path) -> None:
        """Take the state of a checkpoint; the budget's total stays as given."""
        state = load_checkpoint(path)
        load_weights(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.budget.used_s = state["step"], state["used_s"]


def train_sketch(
    work: Path, examples: Examples, which: Which, minutes: float, seed: int, bar: Bar
) -> None:
    """Train, or go on training, the sketch of one model; its start file then holds it.

    The rest of the model is that of the start file, if there is one, else fresh.

    Raises:
        InvalidInputError: A device's sketch is asked for where there is no cloud model.
    """
    torch.manual_seed(seed)
    begun = _cloud(work, examples) if which == "cloud" else _device(work)
    run = SketchRun.start(begun.transformer, minutes)
    checkpoint = work / f"sketch.{which}.pt"
    if checkpoint.exists():
        run.load(checkpoint)
    stage = Stage(
        checkpoint=checkpoint,
        curve=work / f"sketch.{which}.jsonl",
        take_step=lambda: {"loss": train_step(run, examples, seed)},
        look=lambda: {"train": known_loss(run.model, examples)},
        log_every=50,
        save_every_s=SAVE_EVERY_S,
        look_every_s=SAVE_EVERY_S,
    )
    keep_training(run, stage, bar)
    begun.write(work)


def train_step(run: SketchRun, examples: Examples, seed: int) -> float:
    """Take one step on a batch that only seed and step number decide; return its loss."""
    rng = np.random.default_rng((seed, run.step))
    batch = examples.draw(BATCH, rng, varied=False)
    count = run.model.config.n_token - 1
    places = torch.from_numpy(rng.permutation(count)[:PLACES])
    factor = learning_rate_factor(run.budget.fraction, decay_from=DECAY_FROM)
    for group in run.optimizer.param_groups:
        group["lr"] = RATE * factor
    loss = sketch_loss(run.model, batch.tokens, batch.captions, places)
    run.optimizer.zero_grad()
    loss.backward()
    run.optimizer.step()
    run.step += 1
    return float(loss.detach())


def sketch_loss(model: Transformer, tokens: Tensor, captions: Tensor, places: Tensor) -> Tensor:
    """Return the mean loss per token in nats of tokens [B, T], given captions [B, C] alone.

    Place i of the sketch tells token i + 1.
    """
    logits = model.output(model.norm(_sketch(model).at(captions, places)))
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, places + 1].flatten())


@torch.no_grad()
def known_loss(model: Transformer, examples: Examples) -> float:
    """Return the loss per token on training pictures: how well the sketch remembers them."""
    batch = examples.take("train", VALIDATION_PICTURES)
    places = torch.arange(model.config.n_token - 1)
    parts = zip(batch.tokens.split(32), batch.captions.split(32), strict=True)
    losses = [sketch_loss(model, *part, places) * len(part[0]) for part in parts]
    return float(sum(losses)) / len(batch.tokens)


@dataclass(frozen=True)
class _Begun:
    """The model that a start file will hold, and the head of a device's."""

    transformer: Transformer
    head: IntervalHead | None = None

    def write(self, work: Path) -> None:
        weights = {
            "config": asdict(self.transformer.config),
            "model": self.transformer.state_dict(),
        }
        if self.head is None:
            save_checkpoint(work / CLOUD_START, weights)
        else:
            whole = {**weights, "head": self.head.state_dict(), "rank": self.head.rank}
            save_checkpoint(work / DEVICE_START, whole)


def _cloud(work: Path, examples: Examples) -> _Begun:
    model = Transformer(cloud_config(examples.n_word))
    if (work / CLOUD_START).exists():
        _fill(model, load_checkpoint(work / CLOUD_START)["model"])
    return _Begun(model)


def _device(work: Path) -> _Begun:
    if not (work / "cloud.pt").exists():
        raise InvalidInputError(f"no cloud.pt in {work}: train the cloud model first")
    cloud = load_transformer(work / "cloud.pt")
    if not (work / DEVICE_START).exists():
        fresh = DeviceRun.start(cloud, 0).model
        return _Begun(fresh.transformer, fresh.head)
    state = load_checkpoint(work / DEVICE_START)
    model = Transformer(device_config(cloud.config))
    _fill(model, state["model"])
    head = IntervalHead(model.output, state["rank"])
    load_weights(head, state["head"])
    return _Begun(model, head)


def _fill(model: Transformer, weights: dict[str, Tensor]) -> None:
    """Load weights that may be of before there was a sketch."""
    fresh = {name: value for name, value in model.state_dict().items() if "sketch." in name}
    load_weights(model, fresh | weights)


def _sketch(model: Transformer) -> CaptionSketch:
    assert model.sketch is not None
    return model.sketch
