"""Stages that need several trained models: they are loaded here and handed on."""

import json
from pathlib import Path

from torch import Tensor

from fleet.errors import FleetError
from fleet.models.checkpoint import load_device, load_tokenizer, load_transformer
from fleet.prediction import ScoreName
from fleet.training.adapter import AdapterRun, LocalPolicy
from fleet.training.budget import Bar
from fleet.training.calibrate import PREFIX_SHARE, Pair, calibrate
from fleet.training.examples import load_examples

# The policy whose local tokens the adapter is trained on, at guidance 1.
ADAPTER_SCORE: ScoreName = "uncertainty"


def start_adapter(work: Path) -> AdapterRun:
    """Load the pair and the calibrated policy, with a fresh adapter."""
    path = work / "calibration.json"
    if not path.exists():
        raise FleetError(f"no calibration in {work}: run the calibrate step first")
    thresholds = json.loads(path.read_text(encoding="utf-8"))["thresholds"]["1"]
    cloud = load_transformer(work / "cloud.pt")
    prefix = int(PREFIX_SHARE * cloud.config.n_token)
    policy = LocalPolicy(ADAPTER_SCORE, thresholds[ADAPTER_SCORE], prefix)
    return AdapterRun.start(cloud, load_device(work / "device.pt"), load_codes(work), policy)


def run_calibration(work: Path, seed: int, bar: Bar) -> None:
    """Load the pair and calibrate it."""
    cloud, device = load_transformer(work / "cloud.pt"), load_device(work / "device.pt")
    calibrate(work, Pair(cloud, device, load_codes(work)), load_examples(work), seed, bar)


def load_codes(work: Path) -> Tensor:
    """Return the tokenizer's codes [V, d], each of length one."""
    return load_tokenizer(work / "tokenizer.pt").quantize.codes.detach()
