"""Training of the image tokenizer on the pictures, within a budget of minutes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fleet.models.checkpoint import load_checkpoint, load_weights, save_checkpoint, save_tokenizer
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig, Quantizer, to_unit
from fleet.training.budget import Bar, Budget, Curve, learning_rate_factor
from fleet.training.pictures import Pictures

BATCH = 16
RATE = 1.5e-3
COMMITMENT = 0.25
CHECK_EVERY_S = 60.0
VALIDATION_PICTURES = 128
# Low, so that a code revived in vain is moved again within some thirty steps.
REVIVED_COUNT = 0.15


@dataclass
class CodebookAverage:
    """Running counts and sums of the features each code was chosen for (spherical k-means)."""

    counts: Tensor  # [size]
    sums: Tensor  # [size, width]
    decay: float = 0.95
    # A code used less than this often a batch is moved onto a random feature.
    least: float = 0.03

    @classmethod
    def start(cls, quantizer: Quantizer) -> "CodebookAverage":
        """Begin with every code used once, where it is."""
        counts = torch.full((len(quantizer.codes),), REVIVED_COUNT)
        return cls(counts, quantizer.codes.detach() * REVIVED_COUNT)

    @torch.no_grad()
    def update(self, quantizer: Quantizer, features: Tensor, ids: Tensor, revive: bool) -> None:
        """Move each code towards the mean of its features [N, width], and revive dead codes."""
        used = torch.bincount(ids, minlength=len(self.counts)).float()
        total = torch.zeros_like(self.sums).index_add_(0, ids, features)
        self.counts.lerp_(used, 1 - self.decay)
        self.sums.lerp_(total, 1 - self.decay)
        dead = self.counts < self.least
        if revive and dead.any():
            chosen = torch.randint(len(features), (int(dead.sum()),))
            self.sums[dead] = features[chosen] * REVIVED_COUNT
            self.counts[dead] = REVIVED_COUNT
        quantizer.embedding.weight.copy_(F.normalize(self.sums, dim=-1))


@dataclass
class _Run:
    tokenizer: ImageTokenizer
    optimizer: torch.optim.Optimizer
    average: CodebookAverage
    budget: Budget
    step: int = 0


def train_tokenizer(work: Path, pictures: Pictures, minutes: float, seed: int, bar: Bar) -> None:
    """Train, or go on training, `tokenizer.pt` in `work`; the curve is `tokenizer.jsonl`."""
    torch.manual_seed(seed)
    run = _start(work, minutes)
    rng = np.random.default_rng((seed, run.step))
    rows = pictures.rows("train")
    weight = pictures.weight[rows] / pictures.weight[rows].sum()
    curve, checked_s = Curve(work / "tokenizer.jsonl"), run.budget.used_s
    curve.rewind(run.step)
    while run.budget.tick() < 1.0:
        chosen = rng.choice(rows, BATCH, p=weight)
        batch = _augment(to_unit(torch.from_numpy(pictures.pixels[chosen])), rng)
        loss = _step(run, batch)
        bar.show(run.budget.fraction, f"step {run.step} loss {loss:.4f}")
        if run.budget.used_s - checked_s > CHECK_EVERY_S:
            checked_s = run.budget.used_s
            curve.append(step=run.step, s=checked_s, loss=loss, **validate(run.tokenizer, pictures))
            _save(work, run)
    figures = validate(run.tokenizer, pictures)
    curve.append(step=run.step, s=run.budget.used_s, **figures)
    _save(work, run)
    save_tokenizer(work / "tokenizer.pt", run.tokenizer.eval(), figures=figures)


@torch.no_grad()
def validate(tokenizer: ImageTokenizer, pictures: Pictures) -> dict[str, float]:
    """Return PSNR in dB, codes used and entropy in bits on validation pictures."""
    tokenizer.eval()
    rows = pictures.rows("validation")
    rows = rows[:: max(len(rows) // VALIDATION_PICTURES, 1)]
    originals = to_unit(torch.from_numpy(pictures.pixels[rows]))
    ids = torch.cat([tokenizer.encode(part) for part in originals.split(32)])
    decoded = torch.cat([tokenizer.decode(part) for part in ids.split(32)])
    error = ((decoded - originals) / 2).square().mean(dim=(1, 2, 3))
    share = torch.bincount(ids.flatten(), minlength=tokenizer.config.codebook_size) / ids.numel()
    tokenizer.train()
    return {
        "psnr_db": float(-10 * error.log10().mean()),
        "psnr_of_mean_db": float(-10 * error.mean().log10()),
        "codes_used": int((share > 0).sum()),
        "entropy_bits": float(torch.special.entr(share).sum() / np.log(2)),
        "white_error": float((decoded - originals)[originals == 1].abs().mean()),
    }


def picture_loss(decoded: Tensor, originals: Tensor) -> Tensor:
    """Return the loss between pictures [B, 3, H, W]: absolute, squared, and of their edges."""
    # Output is clamped when shown, so overshooting pure white or black is no error; this lets
    # the background become exactly white.
    overshoot = ((originals >= 1) & (decoded > 1)) | ((originals <= -1) & (decoded < -1))
    error = (decoded - originals).masked_fill(overshoot, 0.0)
    edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
    return error.abs().mean() + 4 * error.square().mean() + 0.5 * edges


def _start(work: Path, minutes: float) -> _Run:
    tokenizer = ImageTokenizer(ImageTokenizerConfig())
    tokenizer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub
    tokenizer.quantize.embedding.weight.requires_grad_(False)
    trained = [weight for weight in tokenizer.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.98), weight_decay=1e-4)
    average = CodebookAverage.start(tokenizer.quantize)
    run = _Run(tokenizer, optimizer, average, Budget(minutes * 60))
    path = work / "tokenizer.training.pt"
    if path.exists():
        state = load_checkpoint(path)
        load_weights(tokenizer, state["model"])
        optimizer.load_state_dict(state["optimizer"])
        run.average = CodebookAverage(state["counts"], state["sums"])
        run.step, run.budget.used_s = state["step"], state["used_s"]
    return run


def _save(work: Path, run: _Run) -> None:
    payload: dict[str, Any] = {
        "model": run.tokenizer.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "counts": run.average.counts,
        "sums": run.average.sums,
        "step": run.step,
        "used_s": run.budget.used_s,
    }
    save_checkpoint(work / "tokenizer.training.pt", payload)


def _step(run: _Run, batch: Tensor) -> float:
    tokenizer, fraction = run.tokenizer, run.budget.fraction
    for group in run.optimizer.param_groups:
        group["lr"] = RATE * learning_rate_factor(fraction, decay_from=0.2)
    features = tokenizer.features(batch.contiguous(memory_format=torch.channels_last))
    ids = tokenizer.quantize.nearest(features.detach())
    codes = tokenizer.quantize.codes[ids].permute(0, 3, 1, 2)
    commitment = (features - codes).square().sum(dim=1).mean()
    # Straight through: the decoder sees codes, the encoder gets the decoder's gradient.
    decoded = tokenizer.decode_features(features + (codes - features).detach())
    loss = picture_loss(decoded, batch) + COMMITMENT * commitment
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.optimizer.param_groups[0]["params"], 1.0)
    run.optimizer.step()
    flat = features.detach().permute(0, 2, 3, 1).flatten(0, 2)
    run.average.update(tokenizer.quantize, flat, ids.flatten(), revive=fraction < 0.7)
    run.step += 1
    return float(loss.detach())


def _augment(batch: Tensor, rng: np.random.Generator) -> Tensor:
    """Flip half of the pictures and shift all a little; what enters is white."""
    flipped = torch.from_numpy(rng.random(len(batch)) < 0.5)[:, None, None, None]
    batch = torch.where(flipped, batch.flip(3), batch)
    down, right = (int(value) for value in rng.integers(0, 9, 2))
    padded = F.pad(batch, (4, 4, 4, 4), value=1.0)
    return padded[:, :, down : down + batch.shape[2], right : right + batch.shape[3]]
