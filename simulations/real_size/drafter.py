"""What a drafter of LlamaGen's width costs a device: bytes, time and law by precision.

Weights are random, so laws say only what rounding does to one graph's own.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fleet.models.drafter import Drafter
from fleet.models.drafter_export import DrafterStep, export_drafter
from fleet.models.export import quantise
from fleet.models.formats.llamagen import SIZES
from fleet.models.interval_feature import FeatureProjection
from fleet.models.onnx_model import open_graph
from fleet.models.onnx_weights import in_int8
from fleet.models.transformer import Transformer, TransformerConfig
from simulations.real_size.bench import CODES, GRID, RANK

_GUIDANCE, _TOP_K, _WARM_UP = 7.5, 1000, 2


@dataclass(frozen=True, slots=True)
class DrafterCost:
    """One size in one precision; ratios are to float32 in the same run."""

    subject: str
    megabytes: float  # of the step graph
    ratio_bytes: float
    p50_ms: float  # processor time of a guided step in the middle of a picture
    ratio_time: float
    tv: float  # of the guided law to that in float32


def bench(names: Sequence[str], *, rounds: int) -> list[DrafterCost]:
    """Measures each size's step on one thread, the precisions by turns."""
    torch.set_num_threads(1)
    return [cost for name in names for cost in _bench(name, rounds)]


def _bench(name: str, rounds: int) -> list[DrafterCost]:
    drafter = _random_drafter(name)
    codes = nn.functional.normalize(torch.randn(CODES, 8), dim=-1)
    config = drafter.body.config
    graph = export_drafter(DrafterStep(drafter, FeatureProjection(config.dim), codes))
    graphs = {
        "float32": graph,
        "int8, a scale a matrix": quantise(graph),
        "int8, a scale a block": in_int8(graph),
    }
    sessions = {kind: open_graph(content) for kind, content in graphs.items()}
    inputs, times = _inputs(config), {kind: list[float]() for kind in graphs}
    for _ in range(rounds + _WARM_UP):
        for kind, session in sessions.items():
            begun = time.process_time()
            session.run(["rows", "drawn", "scores", "feature", "hidden"], inputs)
            times[kind].append((time.process_time() - begun) * 1000)
    laws = {kind: _law(session, inputs) for kind, session in sessions.items()}
    cost = {kind: statistics.median(found[_WARM_UP:]) for kind, found in times.items()}
    return [
        DrafterCost(
            subject=f"{name}, {kind}",
            megabytes=len(content) / 1e6,
            ratio_bytes=len(content) / len(graph),
            p50_ms=cost[kind],
            ratio_time=cost[kind] / cost["float32"],
            tv=float(np.abs(laws[kind] - laws["float32"]).sum()) / 2,
        )
        for kind, content in graphs.items()
    ]


def _random_drafter(name: str) -> Drafter:
    size = next(each for each in SIZES if each.name == name)
    torch.manual_seed(1)
    config = TransformerConfig(
        n_layer=1,
        n_head=size.heads,
        dim=size.dim,
        ffn=-(-int(8 * size.dim / 3) // 256) * 256,
        vocab_size=CODES,
        grid=GRID,
        n_word=0,
        caption_length=120,
        caption_dim=8,  # stays with the cloud
    )
    cloud = Transformer(config)
    nn.init.normal_(cloud.output.weight, std=0.03)
    nn.init.normal_(cloud.tok_embeddings.weight, std=0.5)
    return Drafter.of(cloud, RANK).eval().requires_grad_(False)


def _inputs(config: TransformerConfig) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(1)
    heads = (config.n_head, config.head_dim)
    floats = {
        **{f"cache_{index}": (2, config.n_head, config.n_token, heads[1]) for index in range(4)},
        "value": (1, 2, *heads),
        "start": (2, config.dim),
        "noise": (config.vocab_size,),
    }
    drawn = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in floats.items()}
    numbers = {"log_n": 1.0, "temperature": 1.0, "guidance": _GUIDANCE, "threshold": 1.0}
    counts = {"token": 7, "position": config.n_token // 2, "top_k": _TOP_K, "score": 0}
    single = {name: np.array([value], np.float32) for name, value in numbers.items()}
    whole = {name: np.array([value], np.int64) for name, value in counts.items()}
    return {**drawn, **single, **whole}


def _law(session: Any, inputs: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    logits = session.run(["logits"], inputs)[0].astype(np.float64)
    law = np.exp(logits - logits.max())
    normed: NDArray[np.float64] = law / law.sum()
    return normed
