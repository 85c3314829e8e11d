"""A toy fleet: a head, a cloud whose law it has drifted from, and nodes with samples of it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.federation.client_app import HEAD_FILE
from fleet.federation.plan import Plan
from fleet.federation.samples import RingShape, SampleRing, Samples, cloud_number
from fleet.models.head_weights import HeadWeights

CODES, DIM, RANK, KEPT = 16, 8, 3, 6

PLAN = Plan(rounds=2, rank=4, steps=8, batch=64, rate=0.05, least_samples=50, deadline_s=60.0)


def toy_head() -> HeadWeights:
    """What every device has."""
    rng = np.random.default_rng(0)
    return HeadWeights(
        rng.normal(size=(CODES, DIM)).astype(np.float32),
        rng.normal(size=(RANK, DIM), scale=1 / 3).astype(np.float32),
        np.zeros((CODES, RANK), np.float32),
        np.full(CODES, -0.43, np.float32),
    )


def cloud_matrix(drift: float = 0.5) -> NDArray[np.float32]:
    """The center that the cloud has moved on to."""
    rng = np.random.default_rng(1)
    return toy_head().center + drift * rng.normal(size=(CODES, DIM)).astype(np.float32)


def toy_samples(seed: int, count: int = 150) -> Samples:
    """What a node has seen: its own corner of the hidden states, and the cloud's laws there."""
    rng = np.random.default_rng((2, seed))
    center = rng.normal(size=DIM) * 0.3
    hidden = (center + rng.normal(size=(count, DIM))).astype(np.float16)
    logits = hidden.astype(np.float64) @ cloud_matrix().T
    law = np.exp(logits - logits.max(axis=1, keepdims=True))
    law /= law.sum(axis=1, keepdims=True)
    codes = np.argsort(-law, axis=1)[:, :KEPT]
    tokens = np.array([rng.choice(CODES, p=row) for row in law])
    return Samples(
        np.arange(1, count + 1, dtype=np.uint64),
        np.ones(count, np.uint32),
        tokens.astype(np.uint16),
        hidden,
        hidden,
        codes.astype(np.uint16),
        np.log(np.take_along_axis(law, codes, axis=1)).astype(np.float16),
    )


def toy_shape(backbone: str = "backbone") -> RingShape:
    """The ring of a toy node."""
    return RingShape(backbone, DIM, CODES, KEPT, 1000)


def make_node(folder: Path, seed: int, count: int = 150, cloud: str = "") -> dict[str, Any]:
    """A node's folder, and the configuration that names it."""
    samples = toy_samples(seed, count)
    if cloud:
        samples = replace(samples, cloud=np.full(count, cloud_number(cloud), np.uint32))
    SampleRing.create(folder, toy_shape()).append(samples)
    toy_head().save(folder / HEAD_FILE)
    return {"folder": str(folder)}


def make_nodes(folder: Path, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Several of them."""
    return {number: make_node(folder / str(number), number) for number in numbers}
