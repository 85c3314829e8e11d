"""The cloud's forward next to the machine's sgemm, and next to one that pads.

All on one thread, in processor time, so other load on the machine changes less. What is compared
takes turns, so that such load falls on all of it.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fleet.models.bundle import CLOUD_FOLDER
from fleet.models.span_cache import KVCache, Span
from fleet.models.torch_model import CloudModel
from fleet.models.transformer import TransformerConfig

SHAPES = ((1, 1), (1, 8), (8, 4), (32, 4), (64, 4))  # pictures, tokens of each
_WARM_UP = 3
_START = 100  # where the spans of a picture begin


@dataclass(frozen=True, slots=True)
class Work:
    """A forward of so many guided pictures; a row is a token of one guidance branch."""

    subject: str
    rows: int
    forward_ms: float
    gflop_s: float
    sgemm_gflop_s: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Padding:
    """One forward over spans of different lengths, flattened, next to all padded to the longest."""

    subject: str
    flattened_ms: float
    padded_ms: float
    ratio: float


def forwards(models: Path, *, rounds: int) -> list[Work]:
    """The bare forward's rate ÷ that of its own matrix products alone."""
    torch.set_num_threads(1)
    cloud = CloudModel.load(models / CLOUD_FOLDER)
    cache = _cache(cloud, 2 * max(pictures for pictures, _ in SHAPES))
    return [_work(cloud, cache, pictures, tokens, rounds) for pictures, tokens in SHAPES]


def _work(cloud: CloudModel, cache: KVCache, pictures: int, tokens: int, rounds: int) -> Work:
    rng = np.random.default_rng(0)
    spans = [
        Span(row, _START, rng.integers(0, cloud.vocab_size, tokens)) for row in range(2 * pictures)
    ]
    rows = 2 * pictures * tokens
    products = _products(cloud.engine.config, rows)
    flop = 2 * rows * sum(count * ins * outs for count, ins, outs in _layers(cloud.engine.config))
    forward, sgemm = _medians([lambda: cloud.forward_spans(cache, spans), products], rounds)
    return Work(
        f"{pictures} x {tokens} tokens",
        rows,
        forward * 1e3,
        flop / forward / 1e9,
        flop / sgemm / 1e9,
        sgemm / forward,
    )


def paddings(models: Path, *, rounds: int) -> list[Padding]:
    """What padding every span to the longest would cost."""
    torch.set_num_threads(1)
    cloud = CloudModel.load(models / CLOUD_FOLDER)
    mixes = {
        "backlogs of 1 to 16": [1, 2, 3, 5, 8, 16] * 5,
        "30 prefix steps, 1 re-prefill of 64": [1] * 30 + [64],
        "32 backlogs of 4": [4] * 32,
    }
    cache = _cache(cloud, 64)
    return [_padding(cloud, cache, name, lengths, rounds) for name, lengths in mixes.items()]


def _padding(
    cloud: CloudModel, cache: KVCache, name: str, lengths: list[int], rounds: int
) -> Padding:
    def spans(widths: list[int]) -> list[Span]:
        return [
            Span(2 * index + branch, _START, np.zeros(width, np.int64))
            for index, width in enumerate(widths)
            for branch in (0, 1)
        ]

    mixed, padded = spans(lengths), spans([max(lengths)] * len(lengths))
    ways = [lambda: cloud.forward_spans(cache, mixed), lambda: cloud.forward_spans(cache, padded)]
    flat_s, padded_s = _medians(ways, rounds)
    return Padding(name, flat_s * 1e3, padded_s * 1e3, padded_s / flat_s)


def _layers(config: TransformerConfig) -> list[tuple[int, int, int]]:
    """The linear layers: how many, inputs, outputs."""
    n, dim, ffn = config.n_layer, config.dim, config.ffn
    return [
        (n, dim, 3 * dim),
        (n, dim, dim),
        (2 * n, dim, ffn),
        (n, ffn, dim),
        (1, dim, config.vocab_size),
    ]


def _products(config: TransformerConfig, rows: int) -> Callable[[], None]:
    operands = [
        (count, torch.randn(rows, ins), torch.randn(ins, outs))
        for count, ins, outs in _layers(config)
    ]

    def multiply() -> None:
        for count, left, right in operands:
            for _ in range(count):
                torch.mm(left, right)

    return multiply


def _cache(cloud: CloudModel, rows: int) -> KVCache:
    cache = cloud.new_cache(rows)
    condition = cloud.condition_pair([2, 3])
    for row in range(rows):
        cache.begin(row, condition, row % 2)
    return cache


def _medians(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The median seconds of each work, of rounds in which they take turns."""
    return [statistics.median(times) for times in in_turns(works, rounds, warm_up=_WARM_UP)]


def in_turns(
    works: Sequence[Callable[[], object]], rounds: int, *, warm_up: int
) -> list[list[float]]:
    """Seconds of processor time of each work in each of `rounds`, after some to warm up."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(warm_up + rounds):
        for work, found in zip(works, times, strict=True):
            begun = time.process_time()
            work()
            found.append(time.process_time() - begun)
    return [found[warm_up:] for found in times]
