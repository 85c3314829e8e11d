"""Stages that need several trained models: they are loaded here and handed on."""

import json
from pathlib import Path

from torch import Tensor

from fleet.errors import FleetError, InvalidInputError
from fleet.models.checkpoint import load_device, load_tokenizer, load_transformer
from fleet.prediction import ScoreName
from fleet.training.adapter import AdapterRun, LocalPolicy
from fleet.training.budget import Bar
from fleet.training.calibrate import PREFIX_SHARE, calibrate
from fleet.training.examples import load_examples
from fleet.training.histories import PictureHistories
from fleet.training.sampling import SamplingRule
from fleet.training.together import Pair


def start_adapter(
    work: Path, score: ScoreName, sampling: SamplingRule
) -> tuple[AdapterRun, PictureHistories]:
    """Load the pair with a fresh adapter; the policy is calibrated at the sampling's guidance."""
    path = work / "calibration.json"
    if not path.exists():
        raise FleetError(f"no calibration in {work}: run the calibrate step first")
    calibration = json.loads(path.read_text(encoding="utf-8"))
    calibrated = SamplingRule(sampling.guidance, calibration["temperature"], calibration["top_k"])
    thresholds = calibration["thresholds"].get(f"{sampling.guidance:g}")
    if thresholds is None or calibrated != sampling:
        raise InvalidInputError("this sampling was not calibrated: run the calibrate step with it")
    cloud = load_transformer(work / "cloud.pt")
    prefix = int(PREFIX_SHARE * cloud.config.n_token)
    policy = LocalPolicy(score, thresholds[score], prefix, sampling)
    device, guided = load_device(work / "device.pt"), sampling.guidance > 1
    run = AdapterRun.start(cloud, device.head, load_codes(work), policy)
    return run, PictureHistories(cloud, device, load_examples(work), guided)


def run_calibration(work: Path, sampling: SamplingRule, seed: int, bar: Bar) -> None:
    """Load the pair and calibrate it."""
    cloud, device = load_transformer(work / "cloud.pt"), load_device(work / "device.pt")
    calibrate(work, Pair(cloud, device, load_codes(work)), load_examples(work), sampling, seed, bar)


def load_codes(work: Path) -> Tensor:
    """Return the tokenizer's codes [V, d], each of length one."""
    return load_tokenizer(work / "tokenizer.pt").quantize.codes.detach()
