"""The cloud model that replaces the present one: the same network, trained some steps further."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from fleet.models.checkpoint import load_transformer, save_checkpoint
from fleet.models.transformer import Transformer
from fleet.training.average import WeightAverage
from fleet.training.budget import Bar, learning_rate_factor
from fleet.training.cloud import MATRIX_RATE, OTHER_RATE, cross_entropy, make_optimizers
from fleet.training.examples import Examples
from simulations.drift.order import Size

BATCH = 24
AVERAGE_DECAY = 0.9
_DECAY_FROM = 0.3


def train_further(
    start: Path, end: Path, examples: Examples, size: Size, seed: int, bar: Bar
) -> None:
    """Writes to `end` the cloud model of `start` after `size.further` steps more.

    The rates are those of the cloud's own training times `size.peak`, falling to zero. The same
    start, examples and seed give the same model.
    """
    torch.manual_seed(seed)
    steps = size.further
    model = load_transformer(start).train()
    optimizers = make_optimizers(model)
    average = WeightAverage(model.state_dict(), AVERAGE_DECAY)
    for step in range(steps):
        factor = size.peak * learning_rate_factor(
            step / steps, warm_up=0.05, decay_from=_DECAY_FROM
        )
        for optimizer, rate in zip(optimizers, (MATRIX_RATE, OTHER_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
        batch = examples.draw(BATCH, np.random.default_rng((seed, step)), varied=False)
        loss = cross_entropy(model, batch)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        average.update(model.state_dict(), step + 1)
        bar.show((step + 1) / steps, f"step {step + 1} loss {float(loss.detach()):.3f}")
    averaged = Transformer(model.config)
    averaged.load_state_dict(average.weights)
    save_checkpoint(end, {"config": asdict(model.config), "model": averaged.state_dict()})
