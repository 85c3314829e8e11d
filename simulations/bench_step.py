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
from fleet.models.span_cache import Span
from fleet.models.torch_model import CloudModel

CAPTION = "google: red heart"
COMPANY = 16
_WARM_UP = 5  # steps of every turn that do not count
_TURN = 32


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
    alone, crowd = "cloud step, 1 picture", f"cloud step, {COMPANY} pictures, each"
    steps = {
        "device step": _device_step(bundle),
        alone: _cloud_step(cloud, 1, rows),
        crowd: _cloud_step(cloud, COMPANY, rows),
    }
    times = _times(steps, rounds)
    times[crowd] = [value / COMPANY for value in times[crowd]]
    base = statistics.median(times[alone])
    return [_cost(name, values, base) for name, values in times.items()]


def _device_step(bundle: Bundle) -> Callable[[int], None]:
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

    return step


def _cloud_step(cloud: CloudModel, pictures: int, rows: int) -> Callable[[int], None]:
    words = np.arange(2, 6)
    condition = cloud.condition_pair([int(word) for word in words])
    cache = cloud.new_cache(rows * pictures)
    for row in range(rows * pictures):
        cache.begin(row, condition, row % rows)
    tokens = np.zeros(1, np.int64)

    def step(index: int) -> None:
        position = index % (cloud.tokens - 1)
        cloud.forward_spans(cache, [Span(row, position, tokens) for row in range(rows * pictures)])

    return step


def _times(steps: dict[str, Callable[[int], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of `rounds` steps of each subject, after some to warm up.

    Subjects take turns of a few steps, so that a slow minute of the machine slows all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(0, rounds, _TURN):
        for name, step in steps.items():
            for index in range(-_WARM_UP, min(_TURN, rounds - turn)):
                begun = time.process_time()
                step(turn + max(index, 0))
                if index >= 0:
                    times[name].append((time.process_time() - begun) * 1000)
    return times


def _cost(subject: str, times: list[float], base: float) -> StepCost:
    median = statistics.median(times)
    return StepCost(subject, median, float(np.quantile(times, 0.95)), median / base)
