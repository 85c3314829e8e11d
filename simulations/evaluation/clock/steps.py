"""What one forward costs: measured on this machine, or taken from the paper's setting."""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fleet.decoding.accept import verify_all
from fleet.models.branches import Branches
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, Bundle
from fleet.models.onnx_model import DeviceModel
from fleet.models.span_cache import Span
from fleet.models.torch_model import CloudModel
from simulations.evaluation.tree_attention import ROOT, Nodes
from simulations.evaluation.version import commit

LENGTHS = (1, 2, 4, 8, 16, 32, 64)
_MIDDLE = 96  # position at which forwards are timed: a cache of middling length
_CAPTION = "google: red heart"


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of processor time of the forwards for one picture, guided if the release guides.

    Attributes:
        name: Where the numbers come from.
        device: One token on the device.
        level: One level of a draft tree on the device.
        cloud: For each of `LENGTHS`, a forward over that many tokens.
        tree: A forward over a tree of 63 nodes.
        commit: The code that was measured; empty where nothing was.
    """

    name: str
    device: float
    level: float
    cloud: tuple[float, ...]
    tree: float
    commit: str = ""

    def forward(self, tokens: float) -> float:
        """A forward over `tokens` tokens, between those measured by straight lines."""
        return float(np.interp(tokens, LENGTHS, self.cloud))

    def times(self, factor: float) -> "StepCosts":
        """The same device with a cloud of so many times the cost."""
        cloud = tuple(factor * each for each in self.cloud)
        return replace(self, cloud=cloud, tree=factor * self.tree)

    def save(self, path: Path) -> None:
        """Write the costs to a file that `load` reads."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "StepCosts":
        """The costs in a file that `save` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**content, "cloud": tuple(content["cloud"])})


# The paper's latencies fit a cloud and a device on one kind of accelerator, where a forward costs
# the same whatever its length and a device step 9.1% of it (0.091 = 1 / 2.53 - 0.3044).
ACCELERATOR = StepCosts("accelerator, modelled", 0.00364, 0.00364, (0.04,) * len(LENGTHS), 0.04)


def measure(models: Path, rounds: int = 200) -> StepCosts:
    """The costs of an exported family on one thread of this machine.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cloud = CloudModel.load(models / CLOUD_FOLDER)
        bundle = Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY)
        device, guidance = _device_step(bundle, rounds), bundle.manifest.sampling.guidance
        spans = tuple(span_seconds(cloud, length, guidance, rounds) for length in LENGTHS)
        # A level runs eight nodes on the same weights. The device graph has no such form, so
        # the cloud's own ratio of eight tokens to one stands for it.
        level = device * spans[LENGTHS.index(8)] / spans[0]
        # The compiled layers have no trees either. One of 63 nodes and its root has the products
        # of a chain of 64 tokens, and attends to no more keys.
        tree = spans[LENGTHS.index(64)]
        return StepCosts("this machine, measured", device, level, spans, tree, commit())
    finally:
        torch.set_num_threads(threads)


def _device_step(bundle: Bundle, rounds: int) -> float:
    device, manifest = DeviceModel.load(bundle), bundle.manifest
    words = device.vocabulary.encode_leniently(_CAPTION)
    state = device.begin(words, seed=1, sampling=manifest.sampling, policy=verify_all())
    token, place = -1, iter(range(manifest.tokens))

    def step() -> None:
        nonlocal token
        token = device.step(state, next(place), token).token

    return _seconds(step, min(rounds * 4, manifest.tokens - 10))


def span_seconds(cloud: CloudModel, length: int, guidance: float, rounds: int) -> float:
    """Seconds of a forward over `length` tokens of one picture, two rows if it is guided."""
    rows = 2 if guidance > 1 else 1
    words = cloud.condition_pair(list(range(2, 6)))
    cache = cloud.new_cache(rows)
    for row in range(rows):
        cache.begin(row, words, row)
    length = min(length, cloud.tokens)
    start = min(_MIDDLE, cloud.tokens - length)
    spans = [Span(row, start, np.zeros(length, np.int64)) for row in range(rows)]
    return _seconds(lambda: cloud.forward_spans(cache, spans), rounds)


def tree_seconds(cloud: CloudModel, guidance: float, rounds: int) -> float:
    """Seconds of a forward over a tree of 63 nodes of one picture, in fp32."""
    words = np.array([[0] * (cloud.caption_positions - 4) + [2, 3, 4, 5]])
    branches = Branches.of_words(cloud.engine.transformer, words, guidance)
    branches.position = min(_MIDDLE, cloud.tokens - 1)
    tokens = np.zeros((1, 63), np.int64)
    parents = ((np.arange(63) - 1) // 2)[None].clip(ROOT)
    parents[0, 0] = ROOT
    return _seconds(lambda: Nodes(branches, np.array([0])).run(tokens, parents), rounds)


def _seconds(step: Callable[[], object], rounds: int) -> float:
    """The median processor time of a step, after some to warm up."""
    times = []
    for _ in range(rounds + 5):
        begun = time.process_time()
        step()
        times.append(time.process_time() - begun)
    return statistics.median(times[5:])
