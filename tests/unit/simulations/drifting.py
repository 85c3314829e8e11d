"""A work folder of tiny models and captions, small enough that an experiment takes seconds."""

import json
from pathlib import Path

import numpy as np

from fleet.decoding.accept import Policy
from fleet.federation.plan import Plan
from fleet.training.examples import VARIANTS
from simulations.drift.order import ARMS, Arm, Order, Size
from simulations.evaluation.catalogue import Shipped
from simulations.evaluation.sampling_rule import SamplingRule
from tests.unit.models.tiny_family import CODES, GRID, write_work

SIZE = Size(devices=3, pictures=8, measured=3, law_share=1.0, further=4, peak=2.0, colour=1.0)
PLAN = Plan(rounds=2, steps=20, batch=64, rate=0.03, rank=0, least_samples=20)
# A coin asks about half of the drafts of any model.
SHIPPED = Shipped(SamplingRule(0.9, 20, 2.0), Policy("random", 0.5), 2)

_COLOURS = ("red", "blue", "green", "grey", "pink", "gold", "black", "white")


def captions() -> list[str]:
    """Two styles, two themes, each with many captions."""
    return [
        f"{style}: {colour} {size} {theme}"
        for style in ("google", "twitter")
        for theme in ("heart", "cats")
        for colour in _COLOURS
        for size in ("big", "old")
    ]


def work_folder(folder: Path) -> Path:
    """Checkpoints, pictures of one pixel, and random tokens."""
    folder.mkdir()
    write_work(folder)
    texts = captions()
    (folder / "captions.json").write_text(json.dumps(texts), encoding="utf-8")
    count, rng = len(texts), np.random.default_rng(5)
    np.savez(
        folder / "pictures.npz",
        pixels=np.zeros((count, 1, 1, 3), np.uint8),
        split=np.zeros(count, np.uint8),
        weight=np.ones(count, np.float32),
    )
    tokens = rng.integers(0, CODES, (count, VARIANTS, GRID * GRID)).astype(np.uint16)
    np.savez(folder / "tokens.npz", tokens=tokens)
    return folder


def tiny_order(work: Path, out: Path, arms: tuple[Arm, ...] = ARMS, size: Size = SIZE) -> Order:
    """An experiment of one process."""
    return Order(work, out, work, None, SHIPPED, PLAN, size, arms, processes=1)
