"""The agent's draft loop, next to the bare graph, the graph in int8 and the same step in torch.

Times are of this process's processor time on one thread, so other load changes them little. The
subjects take turns in short bursts, since the machine is faster now and slower then, and ratios
are of whole pictures. The draft loop begins its pictures as the agent does: caption, cache and
noise are in its time. The torch step has the bundle's shapes and random weights.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

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
_FFN_MULTIPLE, _RANK, _CODE_DIM = 3, 32, 8

Step = Callable[[int], None]  # of a position


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """Milliseconds of processor time a token; `loop_is`: tokens/s, the loop over the subject."""

    subject: str
    p50_ms: float
    loop_is: float
    other_draws: float  # share of positions with another token than the fp32 graph; 0: none


def bench(models: Path, *, pictures: int, compiled: bool) -> list[DeviceCost]:
    """Measures all subjects by turns.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
    """
    torch.set_num_threads(1)
    bundle = Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY)
    device = BundleDevice(bundle)
    model = device.model
    small = model.with_step_graph(quantise(bundle.read(STEP_GRAPH)))
    order = order_of(bundle.manifest)
    subjects: dict[str, Step] = {
        "draft loop of the agent": draft_loop(device, order),
        "bare onnxruntime, same graph": bare(model, order),
        "bare onnxruntime, memory bound": bare(model, order, bound=True),
        "bare onnxruntime, int8 weights": bare(small, order),
        "torch, eager": _torch(bundle.manifest, compiled=False),
    }
    if compiled:
        subjects["torch, compiled"] = _torch(bundle.manifest, compiled=True)
    times = by_turns(subjects, device.size, pictures)
    other = {"bare onnxruntime, int8 weights": _other_draws(model, small, order)}
    ratios = times / times[0]
    return [
        DeviceCost(name, 1e3 * cost, ratio, other.get(name, 0.0))
        for name, cost, ratio in zip(
            subjects, np.median(times, axis=1), np.median(ratios, axis=1), strict=True
        )
    ]


def order_of(manifest: Manifest) -> Order:
    """A picture as a bundle would have it drawn."""
    policy = PolicyName.parse("ciar").policy(manifest)
    return Order(CAPTION, 1, manifest.sampling, policy, manifest.prefix_tokens, True)


def draft_loop(device: BundleDevice, order: Order) -> Step:
    """What the agent does for a token of one picture after the other."""
    drafter, token = device.begin(order), -1

    def step(position: int) -> None:
        nonlocal drafter, token
        if position == 0:
            drafter = device.begin(order)
        token = drafter.step(position, token).token

    return step


def bare(model: DeviceModel, order: Order, *, bound: bool = False) -> Step:
    """The graph alone, at a position of the same picture; `bound`: by onnxruntime's IO binding."""
    state = model.begin(
        model.vocabulary.encode(CAPTION),
        seed=order.seed,
        sampling=order.sampling,
        policy=order.policy,
    )
    # A cache that nobody wrote to is no memory yet: all of its pages are one page of zeros.
    state.cache[:] = np.random.default_rng(1).normal(size=state.cache.shape)
    return model.bound_step(state) if bound else model.bare_step(state)


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


def by_turns(subjects: dict[str, Step], tokens: int, pictures: int) -> NDArray[np.float64]:
    """Return seconds a token [subjects, pictures]."""
    seconds = np.zeros((len(subjects), pictures))
    steps = list(enumerate(subjects.values()))
    for _, step in steps:
        step(0)
    for picture in range(pictures):
        for first in range(0, tokens, BURST):
            # Who comes first finds the processor's caches full of another's numbers.
            steps.reverse()
            for index, step in steps:
                begun = time.process_time()
                for position in range(first, min(first + BURST, tokens)):
                    step(position)
                seconds[index, picture] += time.process_time() - begun
    return seconds / tokens


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
