"""The agent's draft loop, next to the bare graph, the graph in int8 and the same step in torch.

Times are of this process's processor time on one thread, so other load changes them little; the
subjects alternate in short bursts. The torch step has the bundle's shapes and random weights.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from edge_agent.bundle_device import BundleDevice
from edge_agent.device import Order
from fleet.decoding.policies import PolicyName
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, STEP_GRAPH, Bundle, Manifest
from fleet.models.export import StepGraph, quantise, step_example
from fleet.models.interval_feature import FeatureProjection
from fleet.models.interval_head import IntervalHead
from fleet.models.onnx_model import DeviceModel
from fleet.models.transformer import Transformer, TransformerConfig

CAPTION = "google: red heart"
BURST = 16
_WARM_UP = 8
_FFN_MULTIPLE, _RANK, _CODE_DIM = 3, 32, 8

Step = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """Milliseconds of processor time a token; `loop_is` is its tokens/s over the subject's."""

    subject: str
    p50_ms: float
    loop_is: float
    other_draws: float  # share of positions with another token than the fp32 graph; 0: none


def bench(models: Path, *, rounds: int, compiled: bool) -> list[DeviceCost]:
    """Measures all subjects by turns.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
    """
    torch.set_num_threads(1)
    bundle = Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY)
    model = DeviceModel.load(bundle)
    small = model.with_step_graph(quantise(bundle.read(STEP_GRAPH)))
    order = order_of(bundle.manifest)
    subjects: dict[str, Step] = {
        "draft loop of the agent": draft_loop(BundleDevice(bundle), order),
        "bare onnxruntime, same graph": bare(model, order),
        "bare onnxruntime, int8 weights": bare(small, order),
        "torch, eager": _torch(bundle.manifest, compiled=False),
    }
    if compiled:
        subjects["torch, compiled"] = _torch(bundle.manifest, compiled=True)
    times = _times(subjects, rounds)
    loop_ms = statistics.median(times["draft loop of the agent"])
    cost = {name: statistics.median(values) for name, values in times.items()}
    other = {"bare onnxruntime, int8 weights": _other_draws(model, small, order)}
    return [
        DeviceCost(name, value, value / loop_ms, other.get(name, 0.0))
        for name, value in cost.items()
    ]


def order_of(manifest: Manifest) -> Order:
    """A picture as a bundle would have it drawn."""
    policy = PolicyName.parse("ciar").policy(manifest)
    return Order(CAPTION, 1, manifest.sampling, policy, manifest.prefix_tokens, True)


def draft_loop(device: BundleDevice, order: Order) -> Step:
    """What the agent does for a token, each after the one before, in a picture without end."""
    drafter, tokens = device.begin(order), device.size
    token = -1

    def step(index: int) -> None:
        nonlocal token
        token = drafter.step(index % tokens, token).token

    return step


def bare(model: DeviceModel, order: Order) -> Step:
    """The graph alone, at a position of the same picture."""
    state = model.begin(
        model.vocabulary.encode(CAPTION),
        seed=order.seed,
        sampling=order.sampling,
        policy=order.policy,
    )
    run = model.bare_step(state)
    return lambda index: run(index % model.manifest.tokens)


def _torch(manifest: Manifest, *, compiled: bool) -> Step:
    config = TransformerConfig(
        n_layer=manifest.layers,
        n_head=manifest.heads,
        dim=manifest.width,
        ffn=_FFN_MULTIPLE * manifest.width,
        vocab_size=manifest.vocab_size,
        grid=manifest.grid,
        n_word=64,
        caption_length=manifest.caption_positions,
    )
    transformer = Transformer(config)
    codes = torch.nn.functional.normalize(torch.randn(config.vocab_size, _CODE_DIM), dim=-1)
    head = IntervalHead(torch.nn.Linear(config.dim, config.vocab_size, bias=False), _RANK)
    graph = StepGraph(transformer, head, FeatureProjection(config.dim), codes).eval()
    inputs = tuple(step_example(transformer.config).values())
    run = torch.compile(graph) if compiled else graph

    def step(_: int) -> None:
        with torch.inference_mode():
            run(*inputs)

    return step


def _times(subjects: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each step, in bursts by turns."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    place = dict.fromkeys(subjects, 0)
    for step in subjects.values():
        for index in range(_WARM_UP):
            step(index)
    for name in place:
        place[name] = _WARM_UP
    while min(len(values) for values in times.values()) < rounds:
        for name, step in subjects.items():
            for _ in range(BURST):
                begun = time.process_time()
                step(place[name])
                times[name].append((time.process_time() - begun) * 1e3)
                place[name] += 1
    return times


def _other_draws(model: DeviceModel, other: DeviceModel, order: Order) -> float:
    """Share of positions at which two graphs draw differently after the same tokens."""
    words = model.vocabulary.encode(order.caption)
    states = [
        each.begin(words, seed=order.seed, sampling=order.sampling, policy=order.policy)
        for each in (model, other)
    ]
    token, differs = -1, np.zeros(model.manifest.tokens, bool)
    for position in range(model.manifest.tokens):
        drawn = [
            each.step(state, position, token).token
            for each, state in zip((model, other), states, strict=True)
        ]
        differs[position], token = drawn[0] != drawn[1], drawn[0]
    return float(differs.mean())
