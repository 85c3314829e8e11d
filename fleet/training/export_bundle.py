"""Export of the trained family: the signed device bundle, and the cloud model's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from fleet.errors import InvalidInputError, OutputError
from fleet.models.bundle import (
    CAPTION_GRAPH,
    CLOUD_FOLDER,
    DECODER_GRAPH,
    DEVICE_FOLDER,
    PUBLIC_KEY,
    STEP_GRAPH,
    VOCABULARY,
    Manifest,
    content_version,
    write_bundle,
)
from fleet.models.checkpoint import (
    DeviceParts,
    load_checkpoint,
    load_device,
    load_tokenizer,
    load_transformer,
    load_weights,
)
from fleet.models.export import StepGraph, export_caption, export_decoder, export_step, store_halves
from fleet.models.image_tokenizer import ImageTokenizer
from fleet.models.interval_feature import FeatureProjection, IntervalFeature
from fleet.models.signing import replace_file, write_public_key
from fleet.models.torch_model import (
    CLOUD_FORMAT,
    CONFIG,
    IMAGE_TOKENIZER,
    INTERVAL_FEATURE,
    TRANSFORMER,
)
from fleet.models.transformer import Transformer
from fleet.prediction import ScoreName
from fleet.protocol.messages import Sampling
from fleet.training.released import TRAINING_FOLDER, curve_files, training_files


@dataclass(frozen=True)
class Release:
    """What a person decides about an export; all else follows from the checkpoints."""

    family: str
    guidance: float
    score: ScoreName
    dynamic: bool = False
    max_run: int = 0
    row_starts: bool = False


@dataclass(frozen=True)
class Family:
    """All trained parts, as the work folder holds them."""

    cloud: Transformer
    device: DeviceParts
    projection: FeatureProjection
    feature: IntervalFeature
    tokenizer: ImageTokenizer
    vocabulary: bytes
    calibration: dict[str, Any]

    @classmethod
    def load(cls, work: Path) -> "Family":
        """Read the checkpoints of the work folder.

        Raises:
            InvalidInputError: A stage has not been run.
        """
        cloud, device = load_transformer(work / "cloud.pt"), load_device(work / "device.pt")
        tokenizer = load_tokenizer(work / "tokenizer.pt")
        adapter = load_checkpoint(work / "adapter.pt")
        projection = FeatureProjection(device.transformer.config.dim)
        feature = IntervalFeature(cloud.config.dim)
        load_weights(projection, adapter["projection"])
        load_weights(feature, adapter["feature"])
        # What the graphs hold is then what the release's files hold, to the bit.
        for module in (device.transformer, device.head, projection, tokenizer):
            _round_to_halves(module)
        return cls(
            cloud,
            device,
            projection.eval(),
            feature.eval(),
            tokenizer,
            _read(work / "vocabulary.json", "data"),
            json.loads(_read(work / "calibration.json", "calibrate")),
        )


def export_family(work: Path, output: Path, private_key: Path, release: Release) -> Manifest:
    """Write the device bundle, the cloud folder, what training needs, and the public key.

    All weights are fp16 numbers and are computed with in fp32; the step graph, which has no time
    for turning them, and what is tiny are stored in fp32.

    Raises:
        InvalidInputError: A stage has not been run, or nothing was calibrated at this guidance.
        OutputError: The folder cannot be written.
        BundleError: The key cannot be read.
    """
    family = Family.load(work)
    cloud_files = _cloud_files(family, release.family)
    fields = _manifest_fields(family, release)
    fields["cloud_version"] = content_version(cloud_files)
    manifest = write_bundle(output / DEVICE_FOLDER, fields, _device_files(family), private_key)
    folders = {
        CLOUD_FOLDER: cloud_files,
        TRAINING_FOLDER: {
            **training_files(family.device, family.projection),
            **curve_files(work),
        },
    }
    try:
        for folder, files in folders.items():
            (output / folder).mkdir(exist_ok=True)
            for name, content in files.items():
                replace_file(output / folder / name, content)
        write_public_key(private_key, output / PUBLIC_KEY)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}") from error
    return manifest


def _device_files(family: Family) -> dict[str, bytes]:
    device, codes = family.device, family.tokenizer.quantize.codes.detach()
    step = StepGraph(device.transformer, device.head, family.projection, codes)
    return {
        STEP_GRAPH: export_step(step),
        CAPTION_GRAPH: store_halves(export_caption(device.transformer)),
        DECODER_GRAPH: store_halves(
            export_decoder(family.tokenizer, device.transformer.config.n_token)
        ),
        VOCABULARY: family.vocabulary,
    }


def _cloud_files(family: Family, name: str) -> dict[str, bytes]:
    config = {
        "format": CLOUD_FORMAT,
        "family": name,
        "transformer": {**asdict(family.cloud.config), "dropout": 0.0},
        "image_tokenizer": asdict(family.tokenizer.config),
    }
    return {
        CONFIG: (json.dumps(config, indent=1) + "\n").encode(),
        TRANSFORMER: _weights(family.cloud, torch.float16),
        # Small, and its int8 steps are the manifest's to the bit.
        INTERVAL_FEATURE: _weights(family.feature, torch.float32),
        IMAGE_TOKENIZER: _weights(family.tokenizer, torch.float16),
        VOCABULARY: family.vocabulary,
    }


def _manifest_fields(family: Family, release: Release) -> dict[str, Any]:
    config, calibration = family.device.transformer.config, family.calibration
    return {
        "family": release.family,
        "grid": config.grid,
        "picture_size": config.grid * family.tokenizer.config.downsampling,
        "vocab_size": config.vocab_size,
        "caption_positions": config.caption_length,
        "layers": config.n_layer,
        "heads": config.n_head,
        "head_dim": config.head_dim,
        **_policy_fields(calibration, release),
        "prefix_tokens": int(calibration["prefix_share"] * config.n_token),
        "feature_scale": tuple(family.feature.scale.tolist()),
    }


def _policy_fields(calibration: dict[str, Any], release: Release) -> dict[str, Any]:
    """Return what was calibrated at the release's guidance."""
    by_guidance = calibration["thresholds"]
    thresholds = by_guidance.get(f"{release.guidance:g}")
    if thresholds is None:
        raise InvalidInputError(
            f"nothing was calibrated at guidance {release.guidance:g}, only at"
            f" {', '.join(by_guidance)}"
        )
    sampling = Sampling(
        temperature=calibration["temperature"],
        top_k=calibration["top_k"],
        guidance=release.guidance,
    )
    return {
        "sampling": sampling,
        "score": release.score,
        "dynamic": release.dynamic,
        "max_run": release.max_run,
        "row_starts": release.row_starts,
        "thresholds": thresholds,
        "budget": calibration["call_budget"],
    }


def _round_to_halves(module: nn.Module) -> None:
    module.load_state_dict({n: value.half().float() for n, value in module.state_dict().items()})


def _weights(module: nn.Module, dtype: torch.dtype) -> bytes:
    weights = module.state_dict().items()
    return save({name: value.to(dtype).contiguous() for name, value in weights})


def _read(path: Path, stage: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path} is missing: run the {stage} step first") from error
