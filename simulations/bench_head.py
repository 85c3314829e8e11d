"""What the interval head costs a device step.

Graphs with random weights, exported and run as a device runs them: the same step with a plain
output layer, and with an interval head whose radius has a full matrix or two thin ones. Times are
this process's processor time on one thread; the steps take turns, so that a ratio is of one run.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleet.models.export import StepGraph, export_graph, export_step, step_example
from fleet.models.interval_feature import FeatureProjection
from fleet.models.interval_head import IntervalHead
from fleet.models.onnx_model import open_graph
from fleet.models.transformer import Transformer, TransformerConfig

_WARM_UP = 3
_GUIDANCE = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """A device model of one layer."""

    name: str
    vocab_size: int
    dim: int
    heads: int
    ffn: int
    rank: int


SIZES = (
    Size("as shipped", 1024, 128, 4, 352, 32),
    Size("one layer of LlamaGen-XL", 16_384, 1280, 20, 3456, 64),
)


@dataclass(frozen=True, slots=True)
class HeadCost:
    """Milliseconds of processor time a step, and times the step with a plain output layer."""

    subject: str
    codes: int
    p50_ms: float
    p95_ms: float
    ratio: float


class PlainStep(StepGraph):
    """The step with a plain output layer: keys, values and a draw."""

    def forward(self, *inputs: Tensor | list[Tensor] | None) -> tuple[Tensor, ...]:
        """Return rows and drawn of `StepGraph`; scores and feature are never computed."""
        return super().forward(*inputs)[:2]  # type: ignore[arg-type]  # the same inputs


def bench(sizes: Sequence[Size], *, rounds: int) -> list[HeadCost]:
    """Measures each size's step with each head."""
    torch.set_num_threads(1)
    return [cost for size in sizes for cost in _bench(size, rounds)]


def _bench(size: Size, rounds: int) -> list[HeadCost]:
    torch.manual_seed(1)
    graphs = {
        "plain output layer": _export(size, rank=0, plain=True),
        "interval head, full": _export(size, rank=0),
        f"interval head, rank {size.rank}": _export(size, rank=size.rank),
    }
    sessions = {name: open_graph(content) for name, content in graphs.items()}
    inputs = _inputs(size)
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(rounds + _WARM_UP):
        for name, session in sessions.items():
            known = {each.name for each in session.get_inputs()}
            given = {key: value for key, value in inputs.items() if key in known}
            begun = time.process_time()
            session.run(None, given)
            times[name].append((time.process_time() - begun) * 1000)
    kept = {name: values[_WARM_UP:] for name, values in times.items()}
    base = statistics.median(kept["plain output layer"])
    return [_cost(f"{size.name}, {name}", size, values, base) for name, values in kept.items()]


def _export(size: Size, *, rank: int, plain: bool = False) -> bytes:
    transformer = Transformer(_config(size)).eval()
    head = IntervalHead(transformer.output, rank)
    projection = FeatureProjection(size.dim)
    codes = torch.nn.functional.normalize(torch.randn(size.vocab_size, 8), dim=-1)
    if not plain:
        return export_step(StepGraph(transformer, head, projection, codes))
    graph = PlainStep(transformer, head, projection, codes)
    return export_graph(graph, step_example(transformer.config), ("rows", "drawn"))


def _config(size: Size) -> TransformerConfig:
    return TransformerConfig(
        n_layer=1,
        n_head=size.heads,
        dim=size.dim,
        ffn=size.ffn,
        vocab_size=size.vocab_size,
        grid=16,
        n_word=8,
        caption_dim=16,
    )


def _inputs(size: Size) -> dict[str, NDArray[np.generic]]:
    """The inputs of a step in the middle of a picture, under guidance."""
    config, rng = _config(size), np.random.default_rng(1)
    cells = (2, config.n_head, config.n_token, config.head_dim)
    pair = (1, 2, config.n_head, config.head_dim)
    return {
        "token": np.array([3], np.int64),
        "position": np.array([config.n_token // 2], np.int64),
        "cache_0": rng.normal(size=cells).astype(np.float32),
        "cache_1": rng.normal(size=cells).astype(np.float32),
        "value": rng.normal(size=pair).astype(np.float32),
        "log_n": np.zeros(1, np.float32),
        "start": np.zeros((2, config.dim), np.float32),
        "noise": rng.gumbel(size=config.vocab_size).astype(np.float32),
        "temperature": np.ones(1, np.float32),
        "guidance": np.array([_GUIDANCE], np.float32),
        "top_k": np.zeros(1, np.int64),
        "score": np.zeros(1, np.int64),
        "threshold": np.ones(1, np.float32),
    }


def _cost(subject: str, size: Size, times: list[float], base: float) -> HeadCost:
    median = statistics.median(times)
    high = float(np.quantile(times, 0.95))
    return HeadCost(subject, size.vocab_size, median, high, median / base)
