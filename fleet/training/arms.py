"""What the losses of each arm make of the radius: one trained center, fresh radii, a few steps."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from fleet.models.checkpoint import load_device, load_transformer
from fleet.models.transformer import Transformer
from fleet.training.budget import Bar
from fleet.training.device import RADIUS_RATE, DeviceModel, Recipe, device_loss
from fleet.training.examples import Batch, Examples
from fleet.training.losses import Robust
from fleet.training.metrics import Figures, monitor

# The arms that are told apart: Inter-DRO as published, and ours with each form of worst case.
ARMS = {
    "faithful": Recipe("faithful", Robust("penalised")),
    "sound, ball": Recipe("sound", Robust("ball")),
    "sound, penalised": Recipe("sound", Robust("penalised")),
    "sound, cvar": Recipe("sound", Robust("cvar")),
}
PICTURES, VALIDATION_PICTURES = 64, 16
BATCH, POSITIONS = 8, 64
CENTER_RATE = 1e-4  # the center is trained: it only follows
LOOKS = 10
_COLORS = {"faithful": "#c43c39", "sound, ball": "#1f6fb4", "sound, cvar": "#4a9a5a"}
_PANEL, _MARGIN = (330, 240), 36
_SHOWN = ("log_radius", "coverage", "spearman_bound")


@dataclass(frozen=True)
class Known:
    """Pictures with the cloud's laws at all of their positions [B, T, V]."""

    batch: Batch
    laws: Tensor


def compare_arms(
    work: Path, examples: Examples, names: tuple[str, ...], steps: int, seed: int, bar: Bar
) -> dict[str, list[Figures]]:
    """Train fresh radii on the center of `device.pt` by each arm; the curve of each.

    Writes `arms.json` and `arms.png` to the work folder.
    """
    cloud = load_transformer(work / "cloud.pt")
    known = [
        _know(cloud, examples.take(split, count))
        for split, count in (("train", PICTURES), ("validation", VALIDATION_PICTURES))
    ]
    curves = {}
    for index, name in enumerate(names):
        bar.show(index / len(names), name)
        curves[name] = _train(work, ARMS[name], known[0], known[1], steps, seed)
        (work / "arms.json").write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    draw_arms(curves).save(work / "arms.png", optimize=True)
    return curves


def draw_arms(curves: dict[str, list[Figures]]) -> Image.Image:
    """Plot radius, coverage and rank correlation over steps, a panel each, a line an arm."""
    width, height = _PANEL
    image = Image.new("RGB", (width * len(_SHOWN), height), "white")
    pen = ImageDraw.Draw(image)
    for index, key in enumerate(_SHOWN):
        values = [row[key] for rows in curves.values() for row in rows]
        low, high = min(values), max(values)
        box = (index * width + _MARGIN, _MARGIN, (index + 1) * width - 8, height - _MARGIN)
        pen.rectangle(box, outline="#808080")
        pen.text((index * width + 2, box[1]), f"{high:.2f}", "black")
        pen.text((index * width + 2, box[3] - 11), f"{low:.2f}", "black")
        pen.text((box[0], 4), key.replace("_", " "), "black")
        for place, (name, rows) in enumerate(curves.items()):
            color = _COLORS.get(name, "#909090")
            if index == 0:  # one legend for all panels
                pen.text((_MARGIN + 200 * place, height - 24), name, color)
            last = max(row["step"] for row in rows) or 1
            span = (high - low) or 1
            points = [
                (
                    box[0] + row["step"] / last * (box[2] - box[0]),
                    box[3] - (row[key] - low) / span * (box[3] - box[1]),
                )
                for row in rows
            ]
            pen.line(points, color, 2)
    return image


@torch.no_grad()
def _know(cloud: Transformer, batch: Batch) -> Known:
    parts = zip(batch.tokens.split(BATCH), batch.captions.split(BATCH), strict=True)
    laws = [cloud(tokens[:, :-1], captions)[1].softmax(dim=-1) for tokens, captions in parts]
    return Known(batch, torch.cat(laws))


def _train(
    work: Path, recipe: Recipe, train: Known, validation: Known, steps: int, seed: int
) -> list[Figures]:
    torch.manual_seed(seed)
    model, rng = _fresh(work, recipe), np.random.default_rng(seed)
    radius = [value for name, value in model.head.named_parameters() if "radius" in name]
    center = list(model.transformer.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": radius, "lr": RADIUS_RATE}, {"params": center, "lr": CENTER_RATE}],
        weight_decay=0.0,
    )
    curve = [{"step": 0.0, **_look(model, validation)}]
    for step in range(1, steps + 1):
        rows = torch.from_numpy(rng.permutation(len(train.batch.tokens))[:BATCH])
        length = train.batch.tokens.shape[1]
        positions = torch.from_numpy(rng.permutation(length)[:POSITIONS])
        batch = Batch(train.batch.tokens[rows], train.batch.captions[rows])
        found, radii = model(batch, None, positions)
        target = train.laws[rows][:, positions].flatten(0, 1)
        found, radii = found.flatten(0, 1), radii.flatten(0, 1)
        loss, _ = device_loss(target, found, radii, recipe, all_terms=True)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(steps // LOOKS, 1) == 0:
            curve.append({"step": float(step), **_look(model, validation)})
    return curve


def _fresh(work: Path, recipe: Recipe) -> DeviceModel:
    """The trained device with radii of one half everywhere."""
    trained = load_device(work / "device.pt")
    model = DeviceModel(trained.transformer.config, recipe)
    model.transformer.load_state_dict(trained.transformer.state_dict())
    return model


@torch.no_grad()
def _look(model: DeviceModel, known: Known) -> Figures:
    everywhere = torch.arange(known.laws.shape[1])
    center, radius = model(known.batch, None, everywhere)
    return monitor(*(each.flatten(0, 1) for each in (known.laws, center, radius)))
