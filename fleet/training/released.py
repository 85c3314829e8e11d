"""A released family as a training folder, so that every stage can go on from it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor, nn

from fleet.errors import InvalidInputError
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, VOCABULARY, Bundle
from fleet.models.caption import CaptionVocabulary
from fleet.models.checkpoint import DeviceParts, save_checkpoint, save_tokenizer
from fleet.models.interval_feature import FeatureProjection
from fleet.models.signing import read_file
from fleet.models.torch_model import CloudModel, load_image_tokenizer

CLOUD_START, DEVICE_START = "cloud.start.pt", "device.start.pt"
# What only training needs of a release lies in a folder of its own.
TRAINING_FOLDER = "training"
# Each has a curve in the work folder; a stage that is run anew begins a new one.
STAGES = ("tokenizer", "sketch.cloud", "cloud", "sketch.device", "device", "adapter")
_WEIGHTS, _SIZES = "device.safetensors", "device.json"
_PARTS = ("model", "head", "projection")


def training_files(device: DeviceParts, projection: FeatureProjection) -> dict[str, bytes]:
    """Return the device's weights, which are fp16 numbers when they are exported, and its sizes."""
    modules: tuple[nn.Module, ...] = (device.transformer, device.head, projection)
    weights = {
        f"{part}.{name}": value.half().contiguous().clone()  # the head shares the output layer
        for part, module in zip(_PARTS, modules, strict=True)
        for name, value in module.state_dict().items()
    }
    sizes = {"config": asdict(device.transformer.config), "rank": device.head.rank}
    return {_WEIGHTS: save(weights), _SIZES: (json.dumps(sizes, indent=1) + "\n").encode()}


def curve_files(work: Path) -> dict[str, bytes]:
    """Return the curves of the stages that were run in `work`, or unpacked there."""
    files = {name: work / name for name in map("{}.jsonl".format, STAGES)}
    return {name: path.read_bytes() for name, path in files.items() if path.exists()}


def unpack_release(family: Path, work: Path) -> None:
    """Write in `work` the checkpoints, curves and calibration of a released family.

    The cloud stage begins with `cloud.start.pt` where it has no checkpoint of its own, the device
    stage with `device.start.pt`, and the adapter stage with the released halves; the stages after
    them read `cloud.pt` and `device.pt`.

    Raises:
        InvalidInputError: The data stage built another vocabulary than the release's.
        BundleError: The folder does not hold a released family.
    """
    cloud_folder = family / CLOUD_FOLDER
    released = CaptionVocabulary.load(cloud_folder / VOCABULARY)
    built = CaptionVocabulary.load(work / "vocabulary.json")
    if released != built:
        raise InvalidInputError(
            f"{cloud_folder} knows other caption words than {work}: its weights do not fit"
        )
    save_tokenizer(work / "tokenizer.pt", load_image_tokenizer(cloud_folder))
    cloud = CloudModel.load(cloud_folder)
    transformer = cloud.engine.transformer
    payload = {"config": asdict(transformer.config), "model": transformer.state_dict()}
    for name in (CLOUD_START, "cloud.pt"):
        save_checkpoint(work / name, payload)
    parts, sizes = _device(family / TRAINING_FOLDER)
    for name in (DEVICE_START, "device.pt"):
        save_checkpoint(work / name, {**sizes, "model": parts["model"], "head": parts["head"]})
    feature = cloud.interval_feature.state_dict()
    save_checkpoint(work / "adapter.pt", {"projection": parts["projection"], "feature": feature})
    for name, content in curve_files(family / TRAINING_FOLDER).items():
        (work / name).write_bytes(content)
    calibration = _calibration(Bundle.open(family / DEVICE_FOLDER, family / PUBLIC_KEY))
    (work / "calibration.json").write_text(json.dumps(calibration, indent=2) + "\n", "utf-8")


def _device(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
    # safetensors gives the tensors in any order; checkpoints are told apart by their bytes.
    for name, value in sorted(load(read_file(folder / _WEIGHTS)).items()):
        part, rest = name.split(".", 1)
        parts[part][rest] = value.float()
    sizes: dict[str, Any] = json.loads(read_file(folder / _SIZES))
    return parts, sizes


def _calibration(bundle: Bundle) -> dict[str, Any]:
    """Return what the calibrate stage had written for the guidance of the release."""
    manifest = bundle.manifest
    return {
        "call_budget": manifest.budget,
        "prefix_share": manifest.prefix_tokens / manifest.tokens,
        "temperature": manifest.sampling.temperature,
        "top_k": manifest.sampling.top_k,
        "thresholds": {f"{manifest.sampling.guidance:g}": manifest.thresholds},
    }
