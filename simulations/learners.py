"""Devices that learn, for rounds of many in one process: a small head, and what a cloud has said.

All devices have the same head; the cloud whose laws they saw has moved away from it.
"""

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np

from fleet.federation.client_app import HEAD_FILE
from fleet.federation.samples import RingShape, SampleRing, Samples
from fleet.models.head_weights import HeadWeights

CODES, DIM, RANK, KEPT, SAMPLES = 64, 16, 8, 16, 150
_SHAPE = RingShape("stand-in", DIM, CODES, KEPT, SAMPLES)


class Inline(Executor):
    """Runs what it is given at once, in the caller's thread: what a world's grid takes."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """See `Executor.submit`."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # whoever asks for the result gets it
            done.set_exception(error)
        return done


def stand_in_head() -> HeadWeights:
    """The head of every device."""
    rng = np.random.default_rng(0)
    return HeadWeights(
        rng.normal(size=(CODES, DIM)).astype(np.float32),
        rng.normal(size=(RANK, DIM)).astype(np.float32),
        np.zeros((CODES, RANK), np.float32),
        np.zeros(CODES, np.float32),
    )


def learner(folder: Path, seed: int) -> dict[str, Any]:
    """Makes a device's folder with its samples; its configuration as a node of a grid."""
    rng = np.random.default_rng(1)
    cloud = stand_in_head().center + rng.normal(size=(CODES, DIM), scale=0.5)
    rng = np.random.default_rng((2, seed))
    hidden = rng.normal(size=(SAMPLES, DIM)).astype(np.float16)
    logits = hidden.astype(np.float64) @ cloud.T
    log_law = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    codes = np.argsort(-log_law, axis=1)[:, :KEPT]
    samples = Samples(
        np.zeros(SAMPLES, np.uint64),
        np.ones(SAMPLES, np.uint32),
        codes[:, 0].astype(np.uint16),
        hidden,
        hidden,
        codes.astype(np.uint16),
        np.take_along_axis(log_law, codes, axis=1).astype(np.float16),
    )
    SampleRing.create(folder, _SHAPE).append(samples)
    stand_in_head().save(folder / HEAD_FILE)
    return {"folder": str(folder)}
