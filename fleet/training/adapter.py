"""Training of the interval feature: the cloud learns how far to trust each local token."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleet.models.checkpoint import load_checkpoint, load_weights, save_checkpoint
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.interval_head import (
    IntervalHead,
    IntervalLaw,
    feature_scalars,
    interval_law,
    scores,
)
from fleet.models.transformer import Transformer, guide
from fleet.prediction import SCORE_NAMES, ScoreName
from fleet.training.budget import Bar, Budget, Curve, learning_rate_factor
from fleet.training.histories import History, Source
from fleet.training.losses import divergence
from fleet.training.sampling import SamplingRule, sample

CHECKPOINT = "adapter.pt"

BATCH = 16
RATE = 2e-3
# Guidance adds the feature to rows without caption too, so some are trained on.
WITHHELD_SHARE = 0.3
CHECK_BATCHES = 4
SAVE_EVERY_S = 60.0


@dataclass(frozen=True)
class LocalPolicy:
    """Which tokens stay local: those after the prefix whose score is at most the threshold."""

    score: ScoreName
    threshold: float
    prefix: int
    sampling: SamplingRule

    def decide(self, all_scores: Tensor) -> Tensor:
        """Return where tokens stay local [B, T], from scores [B, T, 6]."""
        local = all_scores[..., SCORE_NAMES.index(self.score)] <= self.threshold
        local[:, : self.prefix] = False
        return local


@dataclass(frozen=True)
class Drift:
    """A history in which local tokens are the device's draws, and what the device said of them."""

    clean: History
    withheld: Tensor  # [B], where the cloud sees no caption
    tokens: Tensor  # [B, T]
    local: Tensor  # [B, T]
    scalars: Tensor  # [B, T, 16]
    hidden: Tensor  # [B, T, D] of the device


@dataclass
class AdapterRun:
    """The adapter in training: both halves, and what is frozen around them."""

    cloud: Transformer
    head: IntervalHead
    codes: Tensor  # [V, d], unit length
    policy: LocalPolicy
    projection: FeatureProjection
    feature: IntervalFeature
    batch: int = BATCH

    @classmethod
    def start(
        cls,
        cloud: Transformer,
        head: IntervalHead,
        codes: Tensor,
        policy: LocalPolicy,
        batch: int = BATCH,
    ) -> "AdapterRun":
        """Begin with an adapter that changes nothing."""
        where = cloud.rotation.device
        projection = FeatureProjection(head.center.in_features).to(where)
        feature = IntervalFeature(cloud.config.dim).to(where)
        cloud.requires_grad_(False)
        return cls(cloud, head, codes.to(where), policy, projection, feature, batch)

    @torch.no_grad()
    def said(self, clean: History) -> tuple[Tensor, IntervalLaw, Tensor]:
        """Return guided logits [B, T, V], their interval and all scores [B, T, 6]."""
        count = len(clean.tokens)
        center = self.head.center(clean.states).float()
        guided = guide(center[:count], center[-count:], self.policy.sampling.guidance)
        law = interval_law(guided, self.head.radius(clean.states[:count]))
        return guided, law, scores(law, self.codes)

    @torch.no_grad()
    def drift(self, clean: History, withheld: Tensor, generator: torch.Generator) -> Drift:
        """Replace the local tokens of clean histories by guided draws of the device."""
        guided, law, all_scores = self.said(clean)
        local = self.policy.decide(all_scores)
        drawn = sample(guided.flatten(0, 1), self.policy.sampling, generator)
        tokens = torch.where(local, drawn.view_as(clean.tokens), clean.tokens)
        score = all_scores[..., SCORE_NAMES.index(self.policy.score)]
        scalars = feature_scalars(law, tokens, score, self.policy.threshold)
        return Drift(clean, withheld, tokens, local, scalars, clean.states[: len(tokens)])

    def features(self, drift: Drift) -> Tensor:
        """Return the features [B, T, 48] before quantisation, zero where the token is not local."""
        features: Tensor = self.projection(drift.scalars, drift.hidden)
        return features * drift.local[..., None]

    def loss(self, drift: Drift, *, switched_on: bool = True) -> Tensor:
        """Return the mean KL divergence from the cloud's law on the clean history."""
        count = len(drift.tokens)
        rows = torch.arange(count, device=drift.tokens.device) + count * drift.withheld
        condition = drift.clean.condition.at(rows)
        with torch.no_grad():
            hidden = self.cloud.hidden_after(condition, drift.clean.tokens[:, :-1])
            target = self.cloud.output(hidden).float().softmax(dim=-1)
        added = None
        if switched_on:
            added = self.feature(self.feature.quantised(self.features(drift)))[:, :-1]
        hidden = self.cloud.hidden_after(condition, drift.tokens[:, :-1], added)
        logits: Tensor = self.cloud.output(hidden).float()
        return divergence(target, logits.log_softmax(dim=-1)).mean()

    def parameters(self) -> list[Tensor]:
        """Return what is trained."""
        return [*self.projection.parameters(), *self.feature.parameters()]

    def save(self, path: Path, **progress: object) -> None:
        """Write both halves."""
        payload = {
            "projection": self.projection.state_dict(),
            "feature": self.feature.state_dict(),
            "cloud_dim": self.cloud.config.dim,
            "device_dim": self.head.center.in_features,
            "policy": asdict(self.policy),
        }
        save_checkpoint(path, {**payload, **progress})


def train_adapter(
    work: Path, source: Source, run: AdapterRun, minutes: float, seed: int, bar: Bar
) -> None:
    """Train, or go on training, `adapter.pt`; the curve is `adapter.jsonl`."""
    optimizer = torch.optim.AdamW(run.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    budget, curve = Budget(minutes * 60), Curve(work / "adapter.jsonl")
    path = work / CHECKPOINT
    if path.exists():
        step = _resume(path, run, optimizer, budget)
    else:
        step = 0
        _choose_scale(run, source, seed)
    curve.rewind(step)
    budget.tick()
    saved_s = budget.used_s
    while budget.tick() < 1.0:
        optimizer.param_groups[0]["lr"] = RATE * learning_rate_factor(budget.fraction, 0.03, 0.3)
        loss = run.loss(_drift(run, source, (seed, step)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        bar.show(budget.fraction, f"step {step} kl {float(loss.detach()):.4f}")
        if budget.used_s - saved_s > SAVE_EVERY_S:
            saved_s = budget.used_s
            curve.append(step=step, s=saved_s, **check_adapter(run, source))
            run.save(path, optimizer=optimizer.state_dict(), step=step, used_s=saved_s)
    progress: dict[str, Any] = {
        "step": step,
        "used_s": budget.used_s,
        "figures": check_adapter(run, source),
    }
    curve.append(step=step, s=budget.used_s, **progress["figures"])
    run.save(path, optimizer=optimizer.state_dict(), **progress)


def _resume(path: Path, run: AdapterRun, optimizer: torch.optim.Optimizer, budget: Budget) -> int:
    """Take both halves from a checkpoint or a release, and return the step they stand at."""
    state = load_checkpoint(path)
    load_weights(run.projection, state["projection"])
    load_weights(run.feature, state["feature"])
    if "optimizer" not in state:  # a release
        return 0
    optimizer.load_state_dict(state["optimizer"])
    budget.used_s = state["used_s"]
    return int(state["step"])


@torch.no_grad()
def check_adapter(run: AdapterRun, source: Source) -> dict[str, float]:
    """Return the KL divergence on validation pictures with the feature off and on."""
    generator = torch.Generator(run.cloud.rotation.device).manual_seed(0)
    off, on = [], []
    for clean in source.validation(run.batch, run.batch * CHECK_BATCHES):
        count = len(clean.tokens)
        withheld = torch.arange(count, device=clean.tokens.device) < WITHHELD_SHARE * count
        drift = run.drift(clean, withheld, generator)
        off.append(run.loss(drift, switched_on=False))
        on.append(run.loss(drift))
    return {"kl_off": float(torch.stack(off).mean()), "kl_on": float(torch.stack(on).mean())}


def _drift(run: AdapterRun, source: Source, seed: tuple[int, int]) -> Drift:
    rng, where = np.random.default_rng(seed), run.cloud.rotation.device
    generator = torch.Generator(where).manual_seed(int(rng.integers(2**62)))
    withheld = torch.from_numpy(rng.random(run.batch) < WITHHELD_SHARE).to(where)
    return run.drift(source.draw(run.batch, rng), withheld, generator)


def _choose_scale(run: AdapterRun, source: Source, seed: int) -> None:
    """Fix the int8 steps from one batch; training keeps features within them by clipping."""
    drift = _drift(run, source, (seed, 2**31))
    with torch.no_grad():
        features = run.features(drift)[drift.local]
        # Twice what is seen, since the projection of the hidden state goes on growing.
        run.feature.set_scale(2 * features)
