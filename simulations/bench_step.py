"""What one token costs on a device and in the cloud.

Times are of this process's processor time, so other load on the machine changes them little.
The device runs its ONNX graph on one thread, the cloud its torch engine on one thread; a cloud
step is one token of one picture (two rows if the release guides), alone or beside others in one
forward.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fleet.decoding.accept import verify_all
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, Bundle
from fleet.models.onnx_model import DeviceModel
from fleet.models.spans import Span
from fleet.models.torch_model import CloudModel

CAPTION = "google: red heart"
COMPANY = 16
_WARM_UP = 5


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of processor time a token."""

    subject: str
    p50_ms: float
    p95_ms: float
    ratio: float  # to the cloud's step of one picture


def bench(models: Path, *, rounds: int) -> list[StepCost]:
    """Measures the device's step and the cloud's, one and sixteen pictures at a time.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
    """
    torch.set_num_threads(1)
    cloud = CloudModel.load(models / CLOUD_FOLDER)
    bundle = Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY)
    rows = 2 if bundle.manifest.sampling.guidance > 1 else 1
    alone, crowd = (_cloud_times(cloud, count, rows, rounds) for count in (1, COMPANY))
    base = statistics.median(alone)
    subjects = {
        "device step": _device_times(bundle, rounds),
        "cloud step, 1 picture": alone,
        f"cloud step, {COMPANY} pictures, each": [value / COMPANY for value in crowd],
    }
    return [_cost(name, values, base) for name, values in subjects.items()]


def _device_times(bundle: Bundle, rounds: int) -> list[float]:
    device, manifest = DeviceModel.load(bundle), bundle.manifest
    state = device.begin(
        device.vocabulary.encode(CAPTION),
        seed=1,
        sampling=manifest.sampling,
        policy=verify_all(),
    )
    token = -1

    def step(index: int) -> None:
        nonlocal token
        token = device.step(state, index % manifest.tokens, token).token

    return _times(step, rounds)


def _cloud_times(cloud: CloudModel, pictures: int, rows: int, rounds: int) -> list[float]:
    words = np.arange(2, 6)
    condition = cloud.condition_pair([int(word) for word in words])
    cache = cloud.new_cache(rows * pictures)
    for row in range(rows * pictures):
        cache.begin(row, condition, row % rows)
    tokens = np.zeros(1, np.int64)

    def step(index: int) -> None:
        position = index % (cloud.tokens - 1)
        cloud.forward_spans(cache, [Span(row, position, tokens) for row in range(rows * pictures)])

    return _times(step, rounds)


def _times(step: Callable[[int], None], rounds: int) -> list[float]:
    """Milliseconds of each of `rounds` steps, after some to warm up."""
    times = []
    for index in range(rounds + _WARM_UP):
        begun = time.process_time()
        step(index)
        times.append((time.process_time() - begun) * 1000)
    return times[_WARM_UP:]


def _cost(subject: str, times: list[float], base: float) -> StepCost:
    median = statistics.median(times)
    return StepCost(subject, median, float(np.quantile(times, 0.95)), median / base)
