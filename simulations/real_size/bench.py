"""What the methods would cost on models as large as LlamaGen's: recorded decisions, real products.

The weights are random, since only their number matters to the clock. Which tokens were asked
about, corrected, or settled by rounds of drafts comes from pictures that the reference family
drew; each story is replayed against the times of this machine at the size. `ASSUMPTIONS` says
what that takes for granted.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from edge_agent.pace import Pace
from fleet.ids import ModelVersion
from fleet.models.export import StepGraph, step_example
from fleet.models.formats.llamagen import SIZES
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.interval_head import IntervalHead
from fleet.models.spans import SpanEngine
from fleet.models.torch_model import CloudModel
from fleet.models.transformer import Transformer, TransformerConfig
from simulations.evaluation.catalogue import OURS
from simulations.evaluation.clock import replay as clock
from simulations.evaluation.clock.drafting import window
from simulations.evaluation.clock.link import PROFILES, Link
from simulations.evaluation.clock.replay import Story, Usage
from simulations.evaluation.clock.steps import LENGTHS, StepCosts, span_seconds, tree_seconds
from simulations.real_size.stories import Recorded
from simulations.real_size.times import Times

CODES, GRID, RANK = 16_384, 16, 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_GUIDED = 2.0  # any guidance above 1 costs the same: two rows a picture
# The bar of the project: cloud-only's cloud time over ours, at no more than that share of calls.
BAR_SIZE, BAR_RATIO, BAR_CALLS = "XL", 2.18, 0.30
ASSUMPTIONS = """\
What replaying assumes:
1. Decisions are those of the reference family (5 layers of 256, 1,024 codes): a pair of the real
   size is taken to agree as often, and to be asked and corrected at the same places.
2. A picture has 256 tokens (256 px at 16 pixels a token), and one guided picture runs at a time:
   nothing is batched, which helps cloud-only most when many draw.
3. A forward is timed once, in the middle of a picture, and costs that much everywhere; cloud time
   is processor time of one thread of this machine, weights are random.
4. A forward's time between the measured lengths lies on straight lines, and a method's mean
   length stands for all of its forwards.
5. The device is one layer of the cloud's width with an interval head of rank 32; links are
   profiles without loss.
6. Nothing follows about quality: whether a real drafter draws well is not known from this."""
# Nobody's link: what is left is the work of the cloud and of the device.
_HERE = Link("here", 0.0, 1e15, 1e15)


@dataclass(frozen=True, slots=True)
class RealSize:
    """Means over the pictures of one method at one size, for one picture at a time."""

    subject: str
    step_s: float  # processor time of a cloud step
    span_8: float  # a span of eight tokens over a step
    method: str
    calls: float  # share of the tokens that are not the device's alone, prefix included
    forwards: float  # of the cloud, over the tokens of a picture
    cloud_s: float  # processor time of the cloud a picture
    ratio: float  # cloud-only's to it
    device_s: float
    wifi_s: float
    five_g_s: float
    four_g_s: float


def bench(
    recorded: Sequence[Recorded], sizes: Sequence[str], dtype: str, *, rounds: int, times: Times
) -> list[RealSize]:
    """Measures a size after the other, as far as `times` lacks it, and replays what was recorded.

    Raises:
        CapacityError: The time was up; what was measured is kept.
    """
    torch.set_num_threads(1)
    rows = []
    for name in sizes:
        costs = measure(name, dtype, rounds, times)
        usages = [_usages(each, costs) for each in recorded]
        base = usages[0][0][0]
        rows += [
            _row(f"{name} {dtype}", each, usage, base, costs)
            for each, usage in zip(recorded, usages, strict=True)
        ]
    return rows


def bar(rows: Sequence[RealSize]) -> str:
    """Whether ours meets the bar at its size; empty where that was not measured."""
    ours = [row for row in rows if row.method == OURS and row.subject.startswith(f"{BAR_SIZE} ")]
    if not ours:
        return ""
    row = ours[0]
    is_met = row.ratio >= BAR_RATIO and row.calls <= BAR_CALLS
    return (
        f"bar at {row.subject}: cloud-only over ours {row.ratio:.2f} (at least {BAR_RATIO}), calls"
        f" {row.calls:.0%} (at most {BAR_CALLS:.0%}): {'met' if is_met else 'NOT met'}"
    )


def measure(name: str, dtype: str, rounds: int, times: Times) -> StepCosts:
    """The times of a size's cloud model and of a device of one such layer, one guided picture."""
    subject, made = f"{name} {dtype}", list[CloudModel]()

    def cloud() -> CloudModel:
        # Gigabytes, so only when something is to be measured.
        made.extend([] if made else [_random_cloud(name, DTYPES[dtype])])
        return made[0]

    measures: list[tuple[str, Callable[[], float]]] = [
        ("device", lambda: _device_seconds(cloud().engine.config, rounds * 4)),
        *((f"span {n}", partial(_span, cloud, n, rounds)) for n in LENGTHS),
    ]
    # Trees are run in fp32 only: elsewhere a chain of as many tokens stands for one.
    if dtype == "fp32":
        measures.append(("tree", lambda: tree_seconds(cloud(), _GUIDED, rounds)))
    found = times.complete(subject, measures)
    spans = tuple(found[f"span {length}"] for length in LENGTHS)
    # The drafter runs the nodes of a level on the same weights; the cloud's ratio stands for it.
    level = found["device"] * spans[LENGTHS.index(8)] / spans[0]
    tree = found.get("tree", spans[LENGTHS.index(64)])
    return StepCosts(subject, found["device"], level, spans, tree)


def _span(cloud: Callable[[], CloudModel], length: int, rounds: int) -> float:
    return span_seconds(cloud(), length, _GUIDED, rounds)


def _random_cloud(name: str, dtype: torch.dtype) -> CloudModel:
    size = next(each for each in SIZES if each.name == name)
    config = TransformerConfig(
        n_layer=size.layers,
        n_head=size.heads,
        dim=size.dim,
        ffn=-(-int(8 * size.dim / 3) // 256) * 256,
        vocab_size=CODES,
        grid=GRID,
        n_word=8,
        caption_length=120,
        caption_dim=2048,
    )
    model = _random(Transformer(config))
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    version = ModelVersion("random")
    return CloudModel(name, version, SpanEngine(model), IntervalFeature(config.dim).eval())


def _random(model: Transformer) -> Transformer:
    torch.manual_seed(1)
    nn.init.normal_(model.output.weight, std=0.02)
    return model.eval().requires_grad_(False)


def _device_seconds(cloud: TransformerConfig, rounds: int) -> float:
    layer = _random(Transformer(replace(cloud, n_layer=1)))
    head = IntervalHead(layer.output, RANK).eval().requires_grad_(False)
    codes = torch.nn.functional.normalize(torch.randn(CODES, 8), dim=-1)
    projection = FeatureProjection(cloud.dim).eval().requires_grad_(False)
    graph = StepGraph(layer, head, projection, codes)
    inputs = step_example(layer.config)
    inputs["position"] = torch.full((1,), GRID * GRID // 2)
    with torch.inference_mode():
        return _seconds(lambda: graph(*inputs.values()), rounds)


def _seconds(step: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds + 2):
        begun = time.process_time()
        step()
        times.append(time.process_time() - begun)
    return statistics.median(times[2:])


def _usages(each: Recorded, costs: StepCosts) -> list[tuple[float, Usage, list[float]]]:
    """For each picture the cloud's seconds, what it took, and its seconds on each link."""
    found = []
    here, paces = Pace(), [Pace() for _ in PROFILES]
    for story in each.stories:
        usage = _on(each, story, costs, _HERE, here)
        seconds = [
            _on(each, story, costs, link, pace).seconds
            for link, pace in zip(PROFILES, paces, strict=True)
        ]
        found.append((_cloud_seconds(each, usage, costs), usage, seconds))
    return found


def _on(each: Recorded, story: Story, costs: StepCosts, link: Link, pace: Pace) -> Usage:
    match each.exchange:
        case "stream":
            return clock.stream(story.tokens, costs, link)
        case "wait":
            return clock.wait(story, costs, link)
        case "rounds":
            return clock.rounds(story, costs, link, each.levels)
        case _:
            return window(story, costs, link, pace)


def _cloud_seconds(each: Recorded, usage: Usage, costs: StepCosts) -> float:
    if each.levels:
        return usage.forwards * costs.tree
    # A forward's time is nearly a straight line in its tokens, so the mean length tells.
    return usage.forwards * costs.forward(usage.cloud_tokens / usage.forwards)


def _row(
    subject: str,
    each: Recorded,
    usages: list[tuple[float, Usage, list[float]]],
    base: float,
    costs: StepCosts,
) -> RealSize:
    cloud = statistics.mean(seconds for seconds, _, _ in usages)
    links = np.mean([seconds for _, _, seconds in usages], axis=0)
    tokens = each.decisions.shape[1]
    return RealSize(
        subject=subject,
        step_s=costs.forward(1),
        span_8=costs.forward(8) / costs.forward(1),
        method=each.name,
        calls=each.calls,
        forwards=statistics.mean(usage.forwards for _, usage, _ in usages) / tokens,
        cloud_s=cloud,
        ratio=base / cloud,
        device_s=statistics.mean(usage.device_steps for _, usage, _ in usages) * costs.device,
        wifi_s=float(links[0]),
        five_g_s=float(links[1]),
        four_g_s=float(links[2]),
    )
